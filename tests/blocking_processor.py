"""A custom logit processor that holds steps up or slows them down while a file exists; the engine loads it by name."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from octavo.records import SamplingParams
from octavo.sampling import AdapterLogitsProcessor


class Blocking(AdapterLogitsProcessor):
    """Blocks from the third token on, or takes a time for each token, while the file exists that a request names."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        wishes = params.extra_args or {}
        if "block_while" in wishes:
            gate = Path(wishes["block_while"])

            def block(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
                while len(output_token_ids) > 2 and gate.exists():
                    time.sleep(0.01)
                return logits

            return block
        if "slow_while" in wishes:
            brake = Path(wishes["slow_while"])

            def slow_down(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
                if brake.exists():
                    time.sleep(wishes["seconds_per_token"])
                return logits

            return slow_down
        return None
