"""A tool-calling loop with the official OpenAI client."""

import json
from typing import Any

from _connection import API_KEY, MODEL, URL
from openai import OpenAI

POPULATION = {"Paris": 2_103_000, "Rome": 2_746_000, "Oslo": 718_000}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_population",
            "description": "Number of inhabitants of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": list(POPULATION)}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def main() -> None:
    """Let the model call the function, send back the result, and print the answer."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY)
    messages: list[Any] = [{"role": "user", "content": "How many people live in Paris?"}]
    # "required" constrains the answer to tool calls; a model trained for tools decides by itself with "auto".
    asked = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="required", max_tokens=96, temperature=0
    )
    message = asked.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        city = json.loads(call.function.arguments)["city"]
        print(f"{call.function.name}({city})")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(POPULATION[city])})

    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=32, temperature=0
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
