"""What takes long for a large request is done in other threads than the one that relays all streams."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_engine import REPLY, FakeEngine, byte_tokenizer
from responses_engine import ScriptedEngine
from running_server import PATIENCE, RunningServer, StartServer

from octavo.api import json_body
from octavo.api.anthropic import messages
from octavo.api.frontend import Frontend
from octavo.api.generative_scoring import Scoring
from octavo.api.openai import chat, completions
from octavo.api.responses import router, run
from octavo.errors import InvalidRequestError
from octavo.tokenization.tokenizer import Tokenizer

LARGE = "a" * json_body.LARGE_BODY
TOOLS = [{"type": "function", "function": {"name": "f", "description": LARGE}}]
HELLO = [{"role": "user", "content": "hi"}]
LABEL = byte_tokenizer().encode(REPLY)[:1]
ITEMS = [{"role": "user", "content": "hi"}] * (run.MANY_ITEMS + 1)
ANTHROPIC = {"messages": HELLO, "max_tokens": 2, "tools": [{"name": "f", "description": LARGE, "input_schema": {}}]}


@contextmanager
def threads_of(owner: Any, name: str) -> Iterator[set[int]]:
    """The threads in which a function is called meanwhile."""
    function: Callable[..., Any] = getattr(owner, name)
    found: set[int] = set()

    def watched(*args: Any, **kwargs: Any) -> Any:
        found.add(threading.get_ident())
        return function(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, watched)
        yield found


@pytest.mark.parametrize(
    ("owner", "name", "path", "body"),
    [
        (json_body, "decode_json", "/tokenize", {"prompt": "x", "more": LARGE}),
        (chat, "ChatAnswer", "/v1/chat/completions", {"messages": HELLO, "tools": TOOLS, "max_tokens": 2}),
        (chat, "ChatTurn", "/v1/chat/completions", {"messages": HELLO, "tools": TOOLS, "max_tokens": 2}),
        (completions, "CompletionAnswer", "/v1/completions", {"prompt": "x", "more": LARGE, "max_tokens": 2}),
        (messages, "conversation_of", "/v1/messages", ANTHROPIC),
        (messages, "conversation_of", "/v1/messages/count_tokens", ANTHROPIC),
        (messages, "ChatTurn", "/v1/messages", ANTHROPIC),
        (router, "prepare", "/v1/responses", {"input": "x", "metadata": {}, "more": LARGE, "max_output_tokens": 2}),
        (run, "to_messages", "/v1/responses", {"input": ITEMS, "max_output_tokens": 2}),
        (Tokenizer, "encode", "/v1/completions/render", {"prompt": ["b" * 50] * 100}),
        (
            Scoring,
            "_prompts",
            "/generative_scoring",
            {"query": "q", "items": ["b" * 3000], "label_token_ids": LABEL},
        ),
        (Frontend, "text_of", "/v1/completions", {"prompt": [[65] * 50] * 100, "echo": True, "max_tokens": 1}),
        (Frontend, "text_of", "/detokenize", {"tokens": [65] * json_body.LARGE_BODY}),
    ],
)
def test_large_requests(server: RunningServer, owner: Any, name: str, path: str, body: dict[str, Any]) -> None:
    if path.startswith("/v1/messages"):
        body = body | {"model": server.engine.model_name}
    with threads_of(owner, name) as threads:
        response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert threads and server.thread.ident not in threads


def test_small_requests_need_no_thread(server: RunningServer) -> None:
    with threads_of(json_body, "decode_json") as threads, threads_of(chat, "ChatAnswer") as others:
        body = {"messages": HELLO, "max_tokens": 2}
        assert server.client.post("/v1/chat/completions", json=body).status_code == 200
    assert threads == others == {server.thread.ident}


def test_stored_conversations_are_read_in_a_thread(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("yes"))
    first = server.client.post("/v1/responses", json={"input": "x"}).json()
    with threads_of(router, "prepare") as threads:
        body = {"input": "y", "previous_response_id": first["id"]}
        assert server.client.post("/v1/responses", json=body).status_code == 200
    assert threads and server.thread.ident not in threads


def test_only_fields_that_are_refused_are_looked_for() -> None:
    """A body may have hundreds of thousands of others."""
    asked: list[str] = []

    class Watched(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("nobody goes through all fields")

        items = keys = values = __iter__

        def __contains__(self, name: object) -> bool:
            asked.append(str(name))
            return super().__contains__(name)

    body = chat.ChatCompletionRequest(messages=HELLO)
    object.__setattr__(body, "__pydantic_extra__", Watched(x=1, suffix="y"))
    with pytest.raises(InvalidRequestError, match="suffix"):
        chat.refuse_unsupported(body)
    assert "suffix" in asked and "x" not in asked


def test_many_prompts_of_one_request_share_their_bad_words() -> None:
    engine = FakeEngine()
    words = ["one", "two", " two", "one"]
    params = engine.input_processor.default_sampling_params()
    params.bad_words = words
    with threads_of(Tokenizer, "encode_batch") as calls:
        first = engine.input_processor.process("a", [1, 2], params).children[0]
        assert calls
        calls.clear()
        second = engine.input_processor.process("b", [3], params).children[0]
        assert not calls
    assert first.bad_words_token_ids == second.bad_words_token_ids
    spelled = [engine.tokenizer.decode(ids) for ids in first.bad_words_token_ids]  # type: ignore[union-attr]
    assert spelled == ["one", " one", "two", " two"]
    params.bad_words = ["three"]
    other = engine.input_processor.process("c", [3], params).children[0]
    assert other.bad_words_token_ids != first.bad_words_token_ids


def test_a_heartbeat_goes_on_while_a_large_answer_is_written(start_server: StartServer) -> None:
    """Streams get their turns while one large answer is made."""
    server = start_server(FakeEngine(step_seconds=0.002))
    large = {"prompt": "x" * 6000, "prompt_logprobs": 20, "max_tokens": 1}
    stream = {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    is_done = threading.Event()
    num_events = {False: 0, True: 0}

    def watch() -> None:
        with server.client.stream("POST", "/v1/completions", json=stream) as response:
            for line in response.iter_lines():
                num_events[is_writing.is_set()] += line.startswith("data:")
                if is_done.is_set():
                    return

    is_writing = threading.Event()
    written = completions.CompletionAnswer._whole

    def slow(*args: Any) -> Any:
        is_writing.set()
        answer = written(*args)
        # However quick that was: if streams do not go on by now, they cannot.
        deadline = time.monotonic() + PATIENCE
        while num_events[True] < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        is_writing.clear()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions.CompletionAnswer, "_whole", slow)
        watcher = threading.Thread(target=watch)
        watcher.start()
        answer = server.client.post("/v1/completions", json=large)
        is_done.set()
        watcher.join(PATIENCE)
    assert len(json.loads(answer.content)["choices"][0]["prompt_logprobs"]) == 6000
    assert num_events[True] >= 20, num_events
