"""``/generative_scoring`` turns the log-probabilities of labels into scores."""

import math
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from running_server import RunningServer, start

from octavo.api.generative_scoring import share
from octavo.records import CompletionOutput, Logprob, PromptType, RequestOutput, SamplingParams

PATH = "/generative_scoring"
BODY: dict[str, Any] = {"query": "ab", "items": ["c", "dd"], "label_token_ids": [5, 6]}


class JudgeEngine(FakeEngine):
    """After a prompt of n tokens, token t has the probability (t + n) / 100."""

    async def generate(
        self, prompt: PromptType, sampling_params: SamplingParams | None, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        assert sampling_params is not None and sampling_params.allowed_token_ids
        ids = self.input_processor.process(request_id, prompt, sampling_params).prompt_token_ids
        self.calls.append({"ids": ids, "params": sampling_params, **options})
        (label,) = sampling_params.allowed_token_ids
        logprobs = [{label: Logprob(math.log((label + len(ids)) / 100), 1)}]
        yield RequestOutput(
            request_id,
            None,
            ids,
            None,
            [CompletionOutput(0, "", [label], None, logprobs, finish_reason="length")],
            True,
        )


@pytest.fixture(scope="module")
def _server(stopped_servers: list[RunningServer]) -> Iterator[RunningServer]:
    server = start(JudgeEngine())
    yield server
    server.stop()
    stopped_servers.append(server)


@pytest.fixture
def server(_server: RunningServer) -> RunningServer:
    _server.engine.calls.clear()
    return _server


def score(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json={**BODY, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_shares_of_the_labels(server: RunningServer) -> None:
    answer = score(server)
    assert [item["object"] for item in answer["data"]] == ["score", "score"]
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert [item["score"] for item in answer["data"]] == pytest.approx([8 / 17, 9 / 19])
    assert answer["usage"] == {
        "prompt_tokens": 7,
        "total_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": None,
    }
    assert len(server.engine.calls) == 4


def test_probabilities_over_the_vocabulary(server: RunningServer) -> None:
    answer = score(server, apply_softmax=False)
    assert [item["score"] for item in answer["data"]] == pytest.approx([0.08, 0.09])
    assert len(server.engine.calls) == 2


def test_the_order_of_query_and_items(server: RunningServer) -> None:
    encode = server.engine.tokenizer.encode
    score(server, cache_salt="s", priority=0)
    assert [call["ids"] for call in server.engine.calls[:2]] == [encode("abc"), encode("abdd")]
    assert {call["cache_salt"] for call in server.engine.calls} == {"s"}
    server.engine.calls.clear()
    score(server, item_first=True, items=[[7], [8, 9]], query=[1, 2])
    assert [call["ids"] for call in server.engine.calls[:2]] == [[7, 1, 2], [8, 9, 1, 2]]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"items": []}, "items"),
        ({"items": "c"}, "items"),
        ({"items": ["c", [1]]}, "items"),
        ({"items": ["c"] * 3000}, "at most"),
        ({"items": ["x" * 200_000]}, "context"),
        ({"query": None}, "query"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [10**6]}, "label_token_ids"),
        ({"label_token_ids": [-1]}, "label_token_ids"),
        ({"label_token_ids": list(range(257))}, "label_token_ids"),
    ],
)
def test_rejected_with_an_error(server: RunningServer, fields: dict[str, Any], sentence: str) -> None:
    response = server.client.post(PATH, json={**BODY, **fields})
    assert response.status_code == 400, response.text
    assert sentence in response.json()["error"]["message"]


logprobs = st.floats(max_value=0, allow_nan=False)


@given(logprobs, st.lists(logprobs, max_size=4))
def test_a_share_is_a_probability(first: float, rivals: list[float]) -> None:
    assert 0 <= share(first, rivals) <= 1


@given(st.lists(st.floats(-500, 0), min_size=1, max_size=5))
def test_shares_add_up(labels: list[float]) -> None:
    shares = [share(label, labels[:i] + labels[i + 1 :]) for i, label in enumerate(labels)]
    assert sum(shares) == pytest.approx(1)
