"""Experts of tokens in answers over HTTP."""

import base64
import io
import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from numpy.typing import NDArray
from running_server import RunningServer, StartServer

from octavo.records import RequestOutput, SamplingParams

GENERATE = "/inference/v1/generate"
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "n": 2},
    "/v1/completions": {"prompt": "hi", "n": 2},
    GENERATE: {"token_ids": [1, 2, 3], "sampling_params": {"n": 2, "temperature": 1.0}},
}


class RoutingEngine(FakeEngine):
    """Tells of experts with the last output of a completion, as engines do."""

    def __init__(self, num_layers: int = 3) -> None:
        super().__init__()
        self.num_layers = num_layers

    async def _outputs(
        self, text: str, prompt_ids: list[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        async for output in super()._outputs(text, prompt_ids, params, request_id):
            for completion in output.outputs:
                if completion.finish_reason is not None:
                    completion.routed_experts = self.experts(completion.index)
            yield output

    def experts(self, index: int) -> NDArray[np.int16]:
        """Experts that differ by completion; −1 in the first layer."""
        experts = np.arange(7 * self.num_layers * 2, dtype=np.int16).reshape(7, self.num_layers, 2) + index
        experts[:, 0] = -1
        return experts


def read(encoded: str) -> NDArray[np.int32]:
    array: NDArray[np.int32] = np.load(io.BytesIO(base64.b64decode(encoded)), allow_pickle=False)
    assert array.dtype == np.int32
    return array


@pytest.mark.long
@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("num_layers", [3, 30_000], ids=["small", "written in a thread"])
def test_whole_answers_have_each_choices_experts(start_server: StartServer, path: str, num_layers: int) -> None:
    engine = RoutingEngine(num_layers)
    choices = start_server(engine).client.post(path, json=REQUESTS[path]).json()["choices"]
    assert len(choices) == 2
    for choice in choices:
        np.testing.assert_array_equal(read(choice["routed_experts"]), engine.experts(choice["index"]))


def test_the_last_events_of_streamed_tokens_have_them(start_server: StartServer) -> None:
    engine = RoutingEngine()
    text = start_server(engine).client.post(GENERATE, json={**REQUESTS[GENERATE], "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    for choice in choices:
        assert ("routed_experts" in choice) == (choice["finish_reason"] is not None)
        if choice["finish_reason"] is not None:
            np.testing.assert_array_equal(read(choice["routed_experts"]), engine.experts(choice["index"]))


def test_without_experts_answers_lack_the_field(server: RunningServer) -> None:
    for path, body in REQUESTS.items():
        for choice in server.client.post(path, json=body).json()["choices"]:
            assert "routed_experts" not in choice


def test_how_much_of_the_prompt_is_left_out_reaches_the_engine(server: RunningServer) -> None:
    for path, body in REQUESTS.items():
        field = {"routed_experts_prompt_start": 2}
        is_nested = path == GENERATE
        sent = {**body, "sampling_params": {**body["sampling_params"], **field}} if is_nested else {**body, **field}
        assert server.client.post(path, json=sent).status_code == 200
        assert server.engine.calls[-1]["params"].routed_experts_prompt_start == 2
    response = server.client.post("/v1/completions", json={"prompt": "hi", "routed_experts_prompt_start": -1})
    assert response.status_code == 400 and "routed_experts_prompt_start" in response.text
