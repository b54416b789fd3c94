"""Order documents by how well they match a query."""

from octavo import LLM


def main() -> None:
    """Score each document against the query, and print the best first."""
    llm = LLM("bundled:smollm2", convert="embed")
    query = "How do I bake bread?"
    documents = [
        "Stocks fell sharply today.",
        "To bake bread, knead flour, water, yeast and salt.",
        "The train leaves at noon.",
    ]
    scores = [output.outputs.score for output in llm.score(query, documents)]
    for score, document in sorted(zip(scores, documents, strict=True), reverse=True):
        print(f"{score:.3f}  {document}")


if __name__ == "__main__":
    main()
