"""Change logits with a class of your own: here, forbid tokens that a request names."""

from collections.abc import Callable

import torch

from octavo import LLM, SamplingParams
from octavo.sampling import AdapterLogitsProcessor


class Forbid(AdapterLogitsProcessor):
    """Masks the token ids in ``extra_args["forbid"]`` of each request that has some."""

    def is_argmax_invariant(self) -> bool:
        """Whether greedy sampling may skip this processor."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """What to apply to each step's logits of one request; None leaves the request alone."""
        forbidden = (params.extra_args or {}).get("forbid")
        if forbidden is None:
            return None

        def process(output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            logits[forbidden] = float("-inf")
            return logits

        return process


def main() -> None:
    """Complete one prompt with and without the processor."""
    llm = LLM("bundled:smollm2", logits_processors=[Forbid])
    paris = llm.get_tokenizer().encode(" Paris")
    plain = SamplingParams(temperature=0.0, max_tokens=6)
    without_paris = SamplingParams(temperature=0.0, max_tokens=6, extra_args={"forbid": paris})
    for output in llm.generate(["The capital of France is"] * 2, [plain, without_paris]):
        print(repr(output.outputs[0].text))


if __name__ == "__main__":
    main()
