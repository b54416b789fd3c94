"""Constrain output to a JSON schema, a regex, a list of choices and a grammar."""

import json

from octavo import LLM, SamplingParams, StructuredOutputsParams

FRUIT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "colour": {"enum": ["red", "green", "yellow"]}},
    "required": ["name", "colour"],
    "additionalProperties": False,
}
ARITHMETIC = """
root ::= number " " operator " " number
operator ::= "+" | "-"
number ::= [1-9] [0-9]?
"""


def main() -> None:
    """Ask one question per kind of constraint."""
    llm = LLM("bundled:smollm2")
    cases = {
        "Describe a fruit as JSON.": StructuredOutputsParams(json=FRUIT),
        "On which day did it happen? Answer as YYYY-MM-DD.": StructuredOutputsParams(regex=r"\d{4}-\d{2}-\d{2}"),
        "Is water wet?": StructuredOutputsParams(choice=["yes", "no"]),
        "Write a sum.": StructuredOutputsParams(grammar=ARITHMETIC),
    }
    conversations = [[{"role": "user", "content": question}] for question in cases]
    params = [
        SamplingParams(temperature=0.0, max_tokens=64, structured_outputs=constraint) for constraint in cases.values()
    ]
    texts = [output.outputs[0].text for output in llm.chat(conversations, params)]
    print(*texts, sep="\n")
    assert json.loads(texts[0])["colour"] in {"red", "green", "yellow"}


if __name__ == "__main__":
    main()
