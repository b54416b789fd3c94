"""What a step says of its own shape."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.records import EngineOutput, Step, StepOutputs, TokenLogprobs


@given(st.data(), st.integers(1, 4))
def test_the_shape_of_a_step(data: st.DataObject, decode_len: int) -> None:
    decodes = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, decode_len)), max_size=4))
    chunks = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(decode_len + 1, 9)), max_size=4))
    rows = decodes + chunks
    if not rows:
        return
    computed, num_scheduled = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    slots, num_drawn = np.arange(len(rows), dtype=np.int32), (num_scheduled > 0).astype(np.int32)
    step = Step(1, slots, computed, num_scheduled, num_drawn, decode_len=decode_len)
    assert step.num_tokens == num_scheduled.sum()
    assert step.num_decodes == len(decodes)
    assert step.num_decode_tokens == sum(count for _, count in decodes)
    assert step.max_query_len == num_scheduled.max()
    assert step.num_cached_tokens == sum(first for first, _ in chunks)
    assert step.is_fresh == (step.num_cached_tokens == 0)


def test_outputs_one_by_one() -> None:
    last = EngineOutput("c", [3], finish_reason="stop")
    logprobs = [TokenLogprobs([2], [-0.5], 1)]
    outputs = StepOutputs(["a", "b"], [1, 2], [last], logprobs={1: logprobs})
    assert list(outputs) == [EngineOutput("a", [1]), EngineOutput("b", [2], logprobs=logprobs), last]
    assert outputs and StepOutputs(others=[last]) and not StepOutputs()
