"""Give a prompt as vectors instead of text, for example from an adapter of your own."""

import torch

from octavo import LLM, SamplingParams


def main() -> None:
    """Complete a prompt of six random vectors of the model's hidden size."""
    llm = LLM("bundled:smollm2", enable_prompt_embeds=True)
    vectors = torch.randn(6, 576, generator=torch.Generator().manual_seed(0)) * 0.05  # [tokens, hidden]
    (output,) = llm.generate([{"prompt_embeds": vectors}], SamplingParams(temperature=0.0, max_tokens=8))
    print(output.outputs[0].token_ids)


if __name__ == "__main__":
    main()
