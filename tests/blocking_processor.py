"""A custom logit processor that holds a step up for as long as a file exists; the engine loads it by name."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from octavo.records import SamplingParams
from octavo.sampling import AdapterLogitsProcessor


class Blocking(AdapterLogitsProcessor):
    """Blocks from the third token on, if a request names a file, while there is one."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        name = (params.extra_args or {}).get("block_while")
        if name is None:
            return None

        def process(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            while len(output_token_ids) > 2 and Path(name).exists():
                time.sleep(0.01)
            return logits

        return process
