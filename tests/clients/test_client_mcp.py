"""A loop around the official ``mcp`` client: tools of an MCP server, offered to the model and called for it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import SUM

mcp = pytest.importorskip("mcp", reason="mcp is not installed")
stdio = pytest.importorskip("mcp.client.stdio")
openai = pytest.importorskip("openai")
TOOL_SERVER = Path(__file__).parent / "mcp_tools.py"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tool_loop(base_url: str, choice: str) -> None:
    answer, num_calls = asyncio.run(converse(base_url, choice))
    assert (answer, num_calls) == (SUM, 1)


async def converse(base_url: str, choice: str) -> tuple[str, int]:
    """The model's answer, and how many calls it took."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    parameters = stdio.StdioServerParameters(command=sys.executable, args=[str(TOOL_SERVER)])
    messages: list[Any] = [{"role": "user", "content": "2 + 3?"}]
    num_calls = 0
    async with stdio.stdio_client(parameters) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()
        tools = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in (await session.list_tools()).tools
        ]
        while True:
            answer = await client.chat.completions.create(
                model="fake/model", messages=messages, tools=tools, tool_choice="auto" if num_calls else choice
            )
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content, num_calls
            messages.append(message)
            for call in message.tool_calls:
                num_calls += 1
                result = await session.call_tool(call.function.name, json.loads(call.function.arguments))
                content = result.content[0].text
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
