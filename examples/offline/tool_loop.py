"""Let the model call a Python function, and answer from what the function returned.

SmolLM2 was not trained to call tools, so a JSON schema constrains the call. Models with a tool-call format do without:
see ``examples/online/openai_tools.py``.
"""

import json

from octavo import LLM, SamplingParams, StructuredOutputsParams

CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "get_population"},
        "arguments": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
POPULATION = {"Paris": 2_103_000, "Rome": 2_746_000, "Oslo": 718_000}


def get_population(city: str) -> str:
    """The tool: what the model cannot know by itself."""
    return f"{city} has {POPULATION[city]:,} inhabitants."


def main() -> None:
    """One round: question, tool call, tool result, answer."""
    llm = LLM("bundled:smollm2")
    question = {"role": "user", "content": "How many people live in Paris?"}
    constraint = SamplingParams(temperature=0.0, max_tokens=64, structured_outputs=StructuredOutputsParams(json=CALL))
    call = json.loads(llm.chat([question], constraint)[0].outputs[0].text)
    print("tool call:", call)

    result = {"get_population": get_population}[call["name"]](**call["arguments"])
    print("tool result:", result)

    messages = [{"role": "user", "content": f"{result} {question['content']}"}]
    answer = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=32))[0].outputs[0].text
    print("answer:", answer)


if __name__ == "__main__":
    main()
