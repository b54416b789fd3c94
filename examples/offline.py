"""Complete two prompts and answer a question, without a server."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Run the example of the README."""
    llm = LLM("bundled:smollm2")
    params = SamplingParams(temperature=0.0, max_tokens=32)
    for output in llm.generate(["The capital of France is", "1, 2, 3,"], params):
        print(output.outputs[0].text)
    print(llm.chat([{"role": "user", "content": "Name three colours."}], params)[0].outputs[0].text)


if __name__ == "__main__":
    main()
