"""Embed texts with a generating model: ``convert="embed"`` pools its hidden states."""

import numpy as np

from octavo import LLM


def main() -> None:
    """Print the cosine similarity of each pair of sentences."""
    llm = LLM("bundled:smollm2", convert="embed")
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Stocks fell sharply today."]
    vectors = np.array([output.outputs.embedding for output in llm.embed(texts)])  # [3, 576], of length 1
    print(np.round(vectors @ vectors.T, 3))


if __name__ == "__main__":
    main()
