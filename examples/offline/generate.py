"""Complete two prompts in one batch."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Generate greedily and print each completion behind its prompt."""
    llm = LLM("bundled:smollm2")
    params = SamplingParams(temperature=0.0, max_tokens=16)
    for output in llm.generate(["The capital of France is", "1, 2, 3,"], params):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
