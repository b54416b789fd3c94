"""Prompts as vectors over HTTP: what they are written as, and what is refused."""

import base64
from typing import Any

import msgspec
import pytest
import torch
from fake_engine import REPLY, FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from running_server import RunningServer, StartServer
from safetensors.torch import save

from octavo.errors import InvalidRequestError
from octavo.inputs.embeds import decode_embeds
from octavo.inputs.processor import InputProcessor
from octavo.records import PromptEmbeds

COMPLETIONS = "/v1/completions"


def written(vectors: torch.Tensor, **more: torch.Tensor) -> str:
    return base64.b64encode(save({"vectors": vectors, **more})).decode()


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    engine = FakeEngine()
    engine.info = msgspec.structs.replace(engine.info, embeds_size=8)
    engine.input_processor = InputProcessor(
        engine.info, engine.tokenizer, eos_token_ids=[256], default_params={}, max_logprobs=20, seed=0
    )
    return start_server(engine)


def ask(server: RunningServer, **fields: Any) -> Any:
    return server.client.post(COMPLETIONS, json={"max_tokens": 50, **fields})


def test_vectors_are_a_prompt(server: RunningServer) -> None:
    answer = ask(server, prompt_embeds=written(torch.randn(5, 8)), n=2).json()
    assert [choice["text"] for choice in answer["choices"]] == [REPLY] * 2
    assert answer["usage"]["prompt_tokens"] == 5
    several = ask(server, prompt_embeds=[written(torch.randn(2, 8)), written(torch.randn(1, 3, 8).bfloat16())]).json()
    assert several["usage"]["prompt_tokens"] == 5 and len(several["choices"]) == 2
    with server.client.stream(
        "POST", COMPLETIONS, json={"prompt_embeds": written(torch.randn(5, 8)), "stream": True}
    ) as response:
        assert response.status_code == 200
        assert list(response.iter_lines())[-2] == "data: [DONE]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_embeds": "no base64!"}, "prompt_embeds"),
        ({"prompt_embeds": base64.b64encode(b"\x80\x04pickle").decode()}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.zeros(2, 7))}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.zeros(2, 8), more=torch.zeros(1))}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.zeros(2, 8, dtype=torch.int8))}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.full((2, 8), torch.nan))}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.zeros(0, 8))}, "prompt_embeds"),
        ({"prompt_embeds": [written(torch.zeros(1, 8))] * 5, "n": 1000}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.zeros(1, 8)), "prompt": "hi"}, "prompt_embeds"),
        ({"prompt_embeds": written(torch.zeros(1, 8)), "echo": True}, "echo"),
        ({"prompt_embeds": written(torch.zeros(1, 8)), "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_embeds": written(torch.zeros(1, 8)), "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"prompt_embeds": written(torch.zeros(1, 8)), "use_beam_search": True}, "prompt_embeds"),
        ({"prompt_embeds": []}, "prompt"),
        ({}, "prompt"),
    ],
)
def test_what_is_no_such_prompt_is_refused(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = ask(server, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_vectors_must_be_allowed(start_server: StartServer) -> None:
    response = ask(start_server(), prompt_embeds=written(torch.zeros(1, 8)))
    assert response.status_code == 400
    assert "--enable-prompt-embeds" in response.json()["error"]["message"]


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_whatever_bytes_come_are_read_or_refused(data: bytes) -> None:
    for content in (data, len(data).to_bytes(8, "little") + data):
        try:
            found = decode_embeds(base64.b64encode(content).decode())
        except InvalidRequestError:
            continue
        assert isinstance(found, PromptEmbeds)
