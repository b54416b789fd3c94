"""Large answers: written in a thread, in pieces, and the same as if written in one go."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pooling_engine import PoolingEngine
from running_server import RunningServer, StartServer
from tiny_bert import write_bert

from octavo.api import logprobs, pieces
from octavo.api.openai.answers import CompletionLogprobs
from octavo.api.openai.logprobs import completion_logprobs
from octavo.api.pooling import vectors


class Part(msgspec.Struct):
    name: str
    items: Any


ITEMS = st.lists(st.none() | st.text() | st.dictionaries(st.integers(), st.floats(allow_nan=False)), max_size=200)


@given(st.lists(st.tuples(st.text(), ITEMS), max_size=5))
def test_pieces_joined_are_the_answer(parts: list[tuple[str, list[Any]]]) -> None:
    def build(write: pieces.ListWriter) -> list[Part]:
        return [Part(name, write(iter(items))) for name, items in parts]

    whole = asyncio.run(pieces.write(0, build))
    apart = asyncio.run(pieces.write(1 << 20, build))
    assert whole == [msgspec.json.encode([Part(name, items) for name, items in parts])]
    assert b"".join(apart) == whole[0]


def test_pieces_are_small() -> None:
    items = ["x" * 1000] * 5000
    apart = asyncio.run(pieces.write(len(items), lambda write: {"items": write(items)}))
    assert len(apart) > 10
    assert max(map(len, apart)) < 1 << 19
    assert msgspec.json.decode(b"".join(apart)) == {"items": items}


@pytest.fixture
def threads_of_entries(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads in which log-probabilities are put into answers."""
    found: set[int] = set()
    finite = logprobs.finite

    def watched(logprob: float) -> float:
        found.add(threading.get_ident())
        return finite(logprob)

    monkeypatch.setattr(logprobs, "finite", watched)
    monkeypatch.setattr("octavo.api.openai.logprobs.finite", watched)
    monkeypatch.setattr("octavo.api.scale_out.generate.finite", watched)
    return found


PROMPT = {"messages": [{"role": "user", "content": "x" * 500}]}
LARGE = [
    ("/v1/chat/completions", PROMPT | {"prompt_logprobs": 20, "max_tokens": 2}),
    ("/v1/chat/completions", PROMPT | {"logprobs": True, "top_logprobs": 20, "max_tokens": 500, "ignore_eos": True}),
    ("/v1/completions", {"prompt": "x" * 500, "prompt_logprobs": 20, "max_tokens": 2}),
    ("/v1/completions", {"prompt": "x" * 500, "echo": True, "logprobs": 20, "max_tokens": 2}),
    (
        "/v1/chat/completions/batch",
        {"messages": [PROMPT["messages"]] * 300, "logprobs": True, "top_logprobs": 20, "max_tokens": 2},
    ),
    (
        "/inference/v1/generate",
        {"token_ids": [65] * 500, "sampling_params": {"prompt_logprobs": 20, "logprobs": 20, "max_tokens": 2}},
    ),
]


@pytest.mark.parametrize(("path", "body"), LARGE)
def test_large_answers_are_not_written_by_the_loop(
    server: RunningServer,
    threads_of_entries: set[int],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
) -> None:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert threads_of_entries and server.thread.ident not in threads_of_entries
    # The same in one go.
    monkeypatch.setattr(pieces, "MAX_AT_ONCE", 1 << 30)
    at_once = server.client.post(path, json=body)
    assert server.thread.ident in threads_of_entries
    own = ("id", "created", "request_id")
    assert {k: v for k, v in response.json().items() if k not in own} == {
        k: v for k, v in at_once.json().items() if k not in own
    }


def test_vectors_of_many_tokens_are_written_in_a_thread(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(PoolingEngine(write_bert(tmp_path, "colbert")))  # type: ignore[arg-type]
    body = {"input": ["a cat purrs the dog barks"] * 100}
    threads = set()

    def written(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return vectors_written(*args)

    vectors_written = vectors._written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "_written", written)
        apart = server.client.post("/pooling", json=body).json()["data"]
        assert threads and server.thread.ident not in threads
        patch.setattr(pieces, "MAX_AT_ONCE", 1 << 30)
        assert server.client.post("/pooling", json=body).json()["data"] == apart
    assert server.thread.ident in threads and len(apart) == 100 and len(apart[0]["data"]) > 5


def test_small_answers_need_no_thread(server: RunningServer, threads_of_entries: set[int]) -> None:
    body = {"prompt": "x", "logprobs": 2, "max_tokens": 2}
    assert server.client.post("/v1/completions", json=body).status_code == 200
    assert threads_of_entries == {server.thread.ident}


def test_offsets_go_on_behind_the_last_token() -> None:
    found, end = completion_logprobs([1, 2], [None, None], None, 10)
    assert found == CompletionLogprobs([10, 20], [None, None], ["token_id:1", "token_id:2"], [None, None])
    assert end == 30
