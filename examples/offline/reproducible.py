"""Get the same random text again: a seed decides a text, whatever else is in the batch."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Draw one text alone and once more beside others; both are equal."""
    # In float32 the size of the batch does not change the logits enough to matter; see docs/reproducible-output.md.
    llm = LLM("bundled:smollm2", dtype="float32")
    seeded = SamplingParams(temperature=1.0, seed=7, max_tokens=16)
    other = SamplingParams(temperature=1.0, seed=8, max_tokens=16)
    prompt = "Once upon a time"
    alone = llm.generate([prompt], seeded)[0].outputs[0].text
    in_a_batch = llm.generate([prompt, prompt, prompt], [other, seeded, other])[1].outputs[0].text
    print(repr(alone))
    assert alone == in_a_batch


if __name__ == "__main__":
    main()
