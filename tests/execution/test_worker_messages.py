"""Steps and plans arrive at a worker's process as they were sent."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from octavo.errors import WeightsError
from octavo.execution import messages
from octavo.records import (
    BlockUpdate,
    CacheGroup,
    Decision,
    Full,
    NewRow,
    Plan,
    PooledData,
    PoolingRequest,
    PromptEmbeds,
    SamplingParams,
    State,
    StateTensor,
    Step,
    as_token_ids,
)


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _assert_same(found: Any, sent: Any) -> None:
    assert type(found) is type(sent)
    if isinstance(sent, np.ndarray):
        assert found.dtype == sent.dtype and found.tolist() == sent.tolist()
    elif isinstance(sent, list):
        assert len(found) == len(sent)
        for left, right in zip(found, sent, strict=True):
            _assert_same(left, right)
    elif dataclasses.is_dataclass(sent):
        for name, value in _fields(sent).items():
            _assert_same(getattr(found, name), value)
    else:
        assert found == sent


@pytest.mark.parametrize("masked_rows", [None, np.array([1], np.int64)])
def test_a_step_arrives_as_it_was(masked_rows: np.ndarray | None) -> None:
    plain = NewRow(3, as_token_ids(list(range(70))), 60, SamplingParams(top_k=3, stop=["x"]), 1 << 63, [2], [[5, 6]], 4)
    vectors = NewRow(
        1,
        as_token_ids([0, 0]),
        2,
        SamplingParams(),
        0,
        [],
        [],
        pooling=PoolingRequest("token_embed", query=PooledData.of(np.ones((2, 3), np.float32))),
        prompt_embeds=PromptEmbeds(b"\x00" * 24, "float32", 2, 3),
    )
    step = Step(
        7,
        *(np.array(values, np.int32) for values in ([3, 1], [4, 0], [1, 2], [1, 1])),
        new_rows=[plain, vectors],
        freed_slots=[9],
        block_updates=[BlockUpdate(0, 3, 1, [8, 9])],
        blocks_to_wipe=[8],
        masked_rows=masked_rows,
    )
    found = messages.decode_to_worker(messages.encode(messages.Submit(step)))
    assert isinstance(found, messages.Submit)
    _assert_same(found.step, step)


def test_a_plan_arrives_as_it_was() -> None:
    groups = (
        CacheGroup(("a", "b"), Full(2, 16, "bfloat16"), 16),
        CacheGroup(("c",), State((StateTensor((2, 3), "float32"),)), 64),
    )
    names = {field.name: 1 for field in dataclasses.fields(Plan) if field.default is dataclasses.MISSING}
    plan = Plan(**(names | {"groups": groups, "dtype": "bfloat16", "decisions": (Decision("a", "b", "c"),)}))  # type: ignore[arg-type]
    call = messages.WorkerCall("start", messages.as_plain((plan, None, [1, "x"])), {})
    found = messages.decode_to_worker(messages.encode(call))
    assert isinstance(found, messages.WorkerCall)
    assert messages.from_plain(found.args) == [plan, None, [1, "x"]]


def test_errors_keep_their_kind() -> None:
    for error, kind in ((WeightsError("no file"), WeightsError), (KeyError("a"), Exception)):
        reply = messages.decode_reply(messages.encode(messages.WorkerReply.of_error(error)))
        with pytest.raises(kind, match=r"no file|KeyError: 'a'"):
            reply.result()
    assert messages.decode_reply(messages.encode(messages.WorkerReply({"a": [1]}))).result() == {"a": [1]}
