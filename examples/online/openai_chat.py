"""Chat with the official OpenAI client, whole and streamed."""

from _connection import API_KEY, MODEL, URL
from openai import OpenAI


def main() -> None:
    """Ask twice; the second answer arrives token by token."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY)
    messages = [{"role": "user", "content": "Name three colours."}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=24, temperature=0)
    print(answer.choices[0].message.content)

    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage:
            print(f"\n{chunk.usage.completion_tokens} tokens")


if __name__ == "__main__":
    main()
