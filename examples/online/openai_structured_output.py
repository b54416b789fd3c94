"""Get an answer as a pydantic model."""

from typing import Literal

from _connection import API_KEY, MODEL, URL
from openai import OpenAI
from pydantic import BaseModel, Field


class Fruit(BaseModel):
    """What the answer has to be."""

    name: str = Field(max_length=12)
    colour: Literal["red", "green", "yellow"]


def main() -> None:
    """Ask for a fruit; ``parse`` sends the schema, and the server constrains the output to it."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY)
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a fruit."}],
        response_format=Fruit,
        max_tokens=64,
        temperature=0,
    )
    print(answer.choices[0].message.parsed)


if __name__ == "__main__":
    main()
