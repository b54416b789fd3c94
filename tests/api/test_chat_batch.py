"""``/v1/chat/completions/batch`` answers each conversation as it would be alone."""

import asyncio
from typing import Any

import pytest
from fake_engine import REPLY
from running_server import RunningServer

from octavo.api.openai.chat_batch import side_by_side

PATH = "/v1/chat/completions/batch"
ONE = [{"role": "user", "content": "one"}]
TWO = [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]


def batch(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json={"messages": [ONE, TWO], **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_every_conversation_is_answered(server: RunningServer) -> None:
    answer = batch(server, n=2, temperature=1.0, logprobs=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {REPLY}
    assert all(choice["logprobs"]["content"] for choice in answer["choices"])
    prompts = [call["prompt"] for call in server.engine.calls]
    assert prompts == ["user: one\nassistant: ", "system: s\nuser: two\nassistant: "]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(map(len, prompts))
    assert usage["completion_tokens"] == 4 * len(REPLY.encode())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6}


def test_choices_tell_their_tokens(server: RunningServer) -> None:
    answer = batch(server, return_token_ids=True, return_prompt_text=True)
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [len(REPLY.encode())] * 2
    assert answer["prompt_token_ids"] is None  # there are two prompts
    assert "prompt_text" not in answer


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages"),
        ({"messages": ONE}, "messages"),
        ({"messages": [ONE, [{"content": "x"}]]}, "role"),
        ({"messages": [ONE] * 3000, "n": 2, "temperature": 1.0}, "at most"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_rejected_with_an_error(server: RunningServer, fields: dict[str, Any], sentence: str) -> None:
    response = server.client.post(PATH, json={"messages": [ONE, TWO], **fields})
    assert response.status_code == 400, response.text
    assert sentence in response.json()["error"]["message"]


def test_one_failure_ends_all() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError

    async def main() -> None:
        with pytest.raises(ValueError):
            await side_by_side([wait(), fail(), wait()])
        assert ended == ["cancelled", "cancelled"]

    asyncio.run(main())
