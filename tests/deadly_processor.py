"""A custom logit processor that ends the engine's process; the engine loads it by name."""

import os
from collections.abc import Callable

import torch

from octavo.records import SamplingParams
from octavo.sampling import AdapterLogitsProcessor


class Deadly(AdapterLogitsProcessor):
    """Ends the process when a request that asks for it has so many tokens."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        fatal_length = (params.extra_args or {}).get("die_after")
        if fatal_length is None:
            return None

        def process(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_token_ids) >= fatal_length:
                os._exit(66)
            return logits

        return process
