"""Read log-probabilities: the likeliest alternatives of each token, and the perplexity of a text."""

import math

from octavo import LLM, SamplingParams


def main() -> None:
    """Print three candidates for each generated token, then the prompt's perplexity."""
    llm = LLM("bundled:smollm2")
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3, prompt_logprobs=0)
    (output,) = llm.generate(["The capital of France is"], params)
    for candidates in output.outputs[0].logprobs or ():
        print({entry.decoded_token: round(math.exp(entry.logprob), 3) for entry in candidates.values()})

    # The first token of a prompt has no log-probability: nothing precedes it.
    logprobs = [next(iter(entry.values())).logprob for entry in output.prompt_logprobs or () if entry]
    print("perplexity of the prompt:", round(math.exp(-sum(logprobs) / len(logprobs)), 2))


if __name__ == "__main__":
    main()
