"""Hold a conversation with the Responses API: the server keeps the earlier turns."""

from _connection import API_KEY, MODEL, URL
from openai import OpenAI


def main() -> None:
    """Ask, then ask again with ``previous_response_id``, streamed."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY)
    first = client.responses.create(model=MODEL, input="Name a colour.", max_output_tokens=16, temperature=0)
    print(first.output_text)
    with client.responses.stream(
        model=MODEL, input="Name another.", previous_response_id=first.id, max_output_tokens=16, temperature=0
    ) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
            elif event.type in ("response.completed", "response.incomplete"):  # incomplete: cut by max_output_tokens
                print("\nstatus:", event.response.status)


if __name__ == "__main__":
    main()
