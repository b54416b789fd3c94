"""Hold a conversation of two turns with the model's chat template."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Ask, append the answer to the conversation, and ask again."""
    llm = LLM("bundled:smollm2")
    params = SamplingParams(temperature=0.0, max_tokens=32)
    messages: list[dict[str, str]] = []
    for question in ("What is the capital of France?", "What is it known for?"):
        messages.append({"role": "user", "content": question})
        answer = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        messages.append({"role": "assistant", "content": answer})
        print(f"user: {question}\nassistant: {answer}")


if __name__ == "__main__":
    main()
