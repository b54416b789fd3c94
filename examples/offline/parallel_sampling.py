"""Sample several completions of one prompt; the prompt is computed once."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Print four completions that share the prompt's cache blocks."""
    llm = LLM("bundled:smollm2")
    params = SamplingParams(n=4, temperature=0.8, top_p=0.95, seed=1, max_tokens=12, stop="\n")
    (output,) = llm.generate(["My favourite colour is"], params)
    for completion in output.outputs:
        print(f"{completion.index}: {completion.text!r} ({completion.finish_reason})")


if __name__ == "__main__":
    main()
