"""Stream an answer with the official Anthropic client."""

import anthropic
from _connection import API_KEY, MODEL, URL


def main() -> None:
    """Print the text as it arrives, then why it ended and its length."""
    client = anthropic.Anthropic(base_url=URL, api_key=API_KEY)
    with client.messages.stream(
        model=MODEL,
        max_tokens=32,
        system="Answer in one sentence.",
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
        message = stream.get_final_message()
    print(f"\n{message.stop_reason}, {message.usage.output_tokens} tokens")


if __name__ == "__main__":
    main()
