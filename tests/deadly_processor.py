"""A custom logit processor that ends the engine's process; the engine loads it by name."""

import os
from collections.abc import Callable

import torch

from octavo.records import SamplingParams
from octavo.sampling import AdapterLogitsProcessor


class Deadly(AdapterLogitsProcessor):
    """Ends the process, or spoils the device, when a request that asks for it has so many tokens."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        wishes = params.extra_args or {}
        fatal_length = wishes.get("die_after", wishes.get("fault_after"))
        if fatal_length is None:
            return None

        def process(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_token_ids) < fatal_length:
                return logits
            if "die_after" in wishes:
                os._exit(66)
            # The device notices the index only when it gets there; from then on every call to it fails.
            return logits[torch.full_like(logits, len(logits) + 1, dtype=torch.int64)]

        return process
