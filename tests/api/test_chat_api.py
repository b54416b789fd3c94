"""``/v1/chat/completions`` says what the engine said, in OpenAI's shape."""

from typing import Any

import pytest
from fake_engine import REPLY, FakeEngine
from running_server import RunningServer, StartServer
from test_completions_api import stream

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def chat(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_whole_answer(server: RunningServer) -> None:
    answer = chat(server)
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": REPLY, "refusal": None, "reasoning": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(REPLY.encode())
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert server.engine.calls[0]["prompt"] == "user: hi\nassistant: "


def test_stream_adds_up_to_the_whole(server: RunningServer) -> None:
    chunks = stream(server, PATH, messages=HELLO, n=2)
    for index in range(2):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in own) == REPLY
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        assert all("role" not in choice["delta"] for choice in own[1:])


def test_length_limits(server: RunningServer) -> None:
    assert chat(server, max_tokens=3)["choices"][0]["finish_reason"] == "length"
    chat(server, max_completion_tokens=5, max_tokens=3)
    chat(server)
    assert [call["params"].max_tokens for call in server.engine.calls][:2] == [3, 5]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs(server: RunningServer, is_streamed: bool) -> None:
    body: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    if is_streamed:
        choices = [chunk["choices"][0] for chunk in stream(server, PATH, messages=HELLO, **body)]
        content = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    else:
        content = chat(server, **body)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["G", "r", "\ufffd"]
    # The third token is half a character: the text cannot show it, the bytes can.
    assert [entry["bytes"] for entry in content] == [[71], [114], [0xC3]]
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -0.75]
    assert content[0]["top_logprobs"][1] == {"token": "!", "logprob": -0.75, "bytes": [33]}


def test_logprobs_without_alternatives(server: RunningServer) -> None:
    content = chat(server, logprobs=True, max_tokens=1)["choices"][0]["logprobs"]["content"]
    assert content[0]["top_logprobs"] == []
    assert chat(server, max_tokens=1)["choices"][0]["logprobs"] is None


def test_template_inputs(server: RunningServer) -> None:
    chat(
        server,
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="auto",
        documents=[{"text": "d"}],
        chat_template_kwargs={"mood": "calm"},
        add_generation_prompt=False,
    )
    assert server.engine.calls[0]["prompt"] == "user: hi\ntools: 1\ndocuments: 1\nmood: calm\n"


def test_echo_and_role_of_a_continued_message(server: RunningServer) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well, "}]
    body: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True, "echo": True}
    answer = chat(server, messages=messages, **body)
    assert answer["choices"][0]["message"]["content"] == "Well, " + REPLY
    chunks = stream(server, PATH, messages=messages, **body)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "Well, " + REPLY


def test_token_ids_and_prompt_logprobs(server: RunningServer) -> None:
    answer = chat(server, return_token_ids=True, prompt_logprobs=0, max_tokens=2)
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert answer["choices"][0]["token_ids"] == [38, 81]
    assert answer["prompt_logprobs"][0] is None
    chunks = stream(server, PATH, messages=HELLO, return_token_ids=True, max_tokens=2)
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == [38, 81]


def test_usage_in_streams(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(server, PATH, messages=HELLO, max_tokens=2, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 2]


def test_continuous_usage_is_each_choices_own(server: RunningServer) -> None:
    """As vLLM counts it; the last event tells the sum."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"max_tokens": 3, "n": 2, "temperature": 1.0, "stream_options": options}
    for path, prompt in ((PATH, {"messages": HELLO}), ("/v1/completions", {"prompt": ["a", "bc"]})):
        *chunks, last = stream(server, path, **prompt, **fields)
        counts: dict[int, list[int]] = {}
        for chunk in chunks:
            (choice,) = chunk["choices"]
            counts.setdefault(choice["index"], []).append(chunk["usage"]["completion_tokens"])
            assert chunk["usage"]["prompt_tokens"] <= last["usage"]["prompt_tokens"]
        num_opening = 1 if path == PATH else 0
        assert all(found == list(range(1 - num_opening, 4)) for found in counts.values()), counts
        assert last["usage"]["completion_tokens"] == 3 * len(counts)


def test_settings_that_shape_answers(start_server: StartServer) -> None:
    server = start_server(
        served_model_name=["first", "second"],
        response_role="bot",
        enable_prompt_tokens_details=False,
        enable_force_include_usage=True,
    )
    answer = chat(server, model="second")
    assert answer["choices"][0]["message"]["role"] == "bot"
    assert answer["usage"]["prompt_tokens_details"] is None
    assert chat(server)["model"] == "first"
    assert stream(server, PATH, messages=HELLO)[-1]["usage"]["completion_tokens"] > 0


def test_no_template(start_server: StartServer) -> None:
    engine = FakeEngine()
    engine.chat_renderer = None
    response = start_server(engine).client.post(PATH, json={"messages": HELLO})
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]
