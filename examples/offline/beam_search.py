"""Find the likeliest continuations by beam search."""

from octavo import LLM, BeamSearchParams


def main() -> None:
    """Print the three best texts of a search of width 3, with their cumulative log-probabilities."""
    llm = LLM("bundled:smollm2")
    (output,) = llm.beam_search(["The capital of France is"], BeamSearchParams(beam_width=3, max_tokens=8))
    for sequence in output.sequences:
        print(f"{sequence.cum_logprob:.3f}  {sequence.text!r}")


if __name__ == "__main__":
    main()
