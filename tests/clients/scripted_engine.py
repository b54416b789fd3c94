"""An engine that answers as a model with one tool would: it calls ``add`` once, and then says the sum."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from fake_engine import FakeEngine

from octavo.records import RequestOutput, SamplingParams

GREETING = "Hello from Octavo."
SUM = "The sum is 5."
ARGUMENTS = {"a": 2, "b": 3}
CITY = {"city": "Bern", "population": 134000}
TOO_LONG = "x" * 140_000
"""More than the engine's context of 131072 tokens: it has a token for every byte."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ADD_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Add two numbers.", "parameters": ADD_SCHEMA},
}


class ScriptedEngine(FakeEngine):
    """Picks its answer by what the prompt holds and what the answer is bound to."""

    async def _outputs(
        self, text: str, prompt_ids: list[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        self.reply = reply(text, params)
        async for output in super()._outputs(text, prompt_ids, params, request_id):
            yield output


def reply(prompt: str, params: SamplingParams) -> str:
    """What the model says."""
    has_result = "\ntool: 5" in prompt
    bound = params.structured_outputs
    if bound is not None and bound.json is not None:
        schema = json.loads(bound.json) if isinstance(bound.json, str) else bound.json
        return _bound_reply(schema, has_result)
    if has_result:
        return SUM
    if "\ntools: " in prompt:
        return f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': ARGUMENTS})}\n</tool_call>"
    return GREETING


def _bound_reply(schema: dict[str, Any], has_result: bool) -> str:
    if schema.get("type") != "array":
        return json.dumps(ARGUMENTS if "a" in schema["properties"] else CITY)
    names = [choice["properties"]["name"]["enum"][0] for choice in schema["items"]["anyOf"]]
    if "add" in names and not has_result:
        return json.dumps([{"name": "add", "parameters": ARGUMENTS}])
    return json.dumps([{"name": names[-1], "parameters": CITY}])
