"""Answers of pooling requests, and what is raised where there is none."""

import numpy as np
import pytest
from engine_requests import engine_request

from octavo.errors import InvalidRequestError, OctavoError, RequestFailedError
from octavo.outputs.pooling import Pooled, PoolingOutputs, checked
from octavo.records import EngineOutput, PooledData, PreparedRequest, SamplingParams, StepOutputs


def answer_to(output: EngineOutput) -> Pooled:
    requests, answers = PoolingOutputs(), list[Pooled]()
    params = SamplingParams()
    prepared = PreparedRequest("r", None, [1, 2], params, [engine_request("r", [1, 2], params)], 0.0)
    requests.add_request(prepared, answers.append)
    requests.process(StepOutputs(["text"], [1], [EngineOutput("text", [2]), output]))
    (answer,) = answers
    assert not len(requests) and answer.finished
    return answer


def test_an_answer() -> None:
    vector = np.arange(3, dtype=np.float32)
    answer = checked(answer_to(EngineOutput("r", pooled=PooledData.of(vector), num_cached_tokens=1)))
    np.testing.assert_array_equal(answer.outputs.array, vector)
    assert answer.num_cached_tokens == 1


@pytest.mark.parametrize(
    ("output", "error", "words"),
    [
        (EngineOutput("r", finish_reason="error", error="Too long.", is_refused=True), InvalidRequestError, "Too long"),
        (EngineOutput("r", finish_reason="error", error="No number."), RequestFailedError, "No number"),
        (EngineOutput("r", finish_reason="abort"), RequestFailedError, "aborted"),
    ],
)
def test_no_answer(output: EngineOutput, error: type[OctavoError], words: str) -> None:
    with pytest.raises(error, match=words):
        checked(answer_to(output))
