"""An engine that follows a script, and helpers that look at responses."""

import re
from collections.abc import AsyncGenerator
from typing import Any

from fake_engine import FakeEngine

from octavo.records import PromptType, RequestOutput, SamplingParams
from octavo.tokenization.tokenizer import Tokenizer

_TEMPLATE = """
{%- for message in messages %}<{{ message.role }}>
{%- if message.reasoning_content %}[{{ message.reasoning_content }}]{% endif %}
{{- message.content }}
{%- for call in message.tool_calls %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{{- "\\n" }}{% endfor -%}
{%- if tools %}tools: {% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ "\\n" }}{% endif -%}
{%- if reasoning_effort is defined %}effort: {{ reasoning_effort }}{{ "\\n" }}{% endif -%}
<assistant>
"""
_IDS = re.compile(r"\b((resp_|msg_|rs_|fc_|ctc_|mcp_|mcpl_|mcpr_|bc_|chatcmpl-tool-))[0-9a-f]{8,}")


class ScriptedEngine(FakeEngine):
    """Answers its first request with the first of its replies, and so on; the last one stays."""

    def __init__(self, *replies: str, step_seconds: float = 0.0) -> None:
        super().__init__(replies[0], step_seconds)
        self.replies = list(replies)
        assert self.tokenizer is not None
        self.tokenizer = Tokenizer(self.tokenizer.backend, self.tokenizer.special_tokens, {"default": _TEMPLATE})
        self.chat_renderer = type(self.chat_renderer)(self.tokenizer)  # type: ignore[misc, call-arg]

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        self.reply = self.replies[min(len(self.calls), len(self.replies) - 1)]
        async for output in super().generate(prompt, sampling_params, request_id, **options):
            yield output

    @property
    def prompts(self) -> list[str]:
        """What the model read."""
        return [call["prompt"] for call in self.calls]


def call_text(name: str, arguments: str) -> str:
    """A call in the format of Hermes' models."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def without_ids(value: Any) -> Any:
    """A response without what differs from one request to the next."""
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ("created_at", "completed_at")}
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    return _IDS.sub(r"\1x", value) if isinstance(value, str) else value


def check_order(events: list[dict[str, Any]], first: int = 0) -> None:
    """Every event comes where the protocol has it: numbers go up by one, and what begins ends."""
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    assert events[0]["type"] == "response.created"
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    open_items: dict[int, dict[str, Any]] = {}
    open_parts: dict[tuple[str, int], str] = {}
    deltas: dict[str, str] = {}
    done: dict[int, dict[str, Any]] = {}
    for event in events:
        kind, place = event["type"], event.get("output_index")
        match kind:
            case "response.output_item.added":
                assert place not in done and place not in open_items
                assert place == len(open_items) + len(done)
                open_items[place] = event["item"]
            case "response.output_item.done":
                assert open_items.pop(place)["id"] == event["item"]["id"]
                assert event["item"].get("status") != "in_progress"
                done[place] = event["item"]
            case "response.content_part.added":
                assert event["item_id"] == open_items[place]["id"]
                open_parts[event["item_id"], event["content_index"]] = event["part"]["type"]
            case "response.content_part.done":
                assert open_parts.pop((event["item_id"], event["content_index"])) == event["part"]["type"]
                assert event["part"]["text"] == deltas[event["item_id"]]
            case _ if kind.endswith(".delta"):
                assert event["item_id"] == open_items[place]["id"]
                deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
            case "response.output_text.done" | "response.reasoning_text.done":
                deltas.setdefault(event["item_id"], "")
                assert event["text"] == deltas[event["item_id"]]
            case "response.function_call_arguments.done":
                assert event["arguments"] == deltas.get(event["item_id"], "")
    assert not open_items and not open_parts
    assert [done[place] for place in sorted(done)] == last["response"]["output"]
