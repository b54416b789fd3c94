"""What goes over the wire comes out as it went in, and nothing else comes out."""

import msgspec
import numpy as np
import pytest
from engine_requests import as_dicts, engine_request
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine import messages
from octavo.errors import InvalidRequestError
from octavo.inputs.processor import InputProcessor
from octavo.records import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    KeySpan,
    RequestTimes,
    SamplingParams,
    StepOutputs,
    as_token_ids,
)
from octavo.records.engine import TokenLogprobs

TOKENS = st.lists(st.integers(0, (1 << 31) - 1), max_size=8)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> EngineRequest:
    params = SamplingParams(
        temperature=draw(st.floats(0, 2)),
        seed=draw(st.none() | st.integers(0, (1 << 64) - 1)),
        stop=draw(st.lists(TEXT.filter(bool), max_size=2)),
        logit_bias=draw(st.none() | st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3)),
        logprobs=draw(st.none() | st.integers(-1, 5)),
        extra_args=draw(st.none() | st.dictionaries(TEXT, st.integers(-5, 5) | TEXT | st.lists(TEXT), max_size=2)),
    )
    return engine_request(
        draw(TEXT),
        draw(TOKENS),
        params,
        seed=draw(st.integers(0, (1 << 64) - 1)),
        eos_token_ids=draw(TOKENS),
        bad_words_token_ids=draw(st.lists(TOKENS, max_size=2)),
        output_token_ids=draw(TOKENS),
        cache_salt=draw(st.none() | TEXT),
        leader_id=draw(st.none() | TEXT),
        key_spans=draw(st.lists(st.builds(KeySpan, st.integers(0, 9), st.integers(1, 20), TEXT, TEXT), max_size=2)),
    )


@given(st.lists(requests(), max_size=3))
def test_requests(sent: list[EngineRequest]) -> None:
    message = messages.decode_to_engine(messages.encode(messages.Add(sent)))
    assert isinstance(message, messages.Add)
    assert as_dicts(message.requests) == as_dicts(sent)
    assert not message.followers
    for request in message.requests:
        for token_ids in (request.prompt_token_ids, request.output_token_ids):
            assert token_ids.dtype == np.int32
            assert not token_ids.flags.writeable


def test_a_prompt_travels_as_the_bytes_of_an_array() -> None:
    sent = engine_request("r", range(1000), SamplingParams())
    assert np.arange(1000, dtype=np.int32).tobytes() in messages.encode(messages.Add([sent]))
    reversed_ids = msgspec.structs.replace(sent, prompt_token_ids=sent.prompt_token_ids[::-1])
    message = messages.decode_to_engine(messages.encode(messages.Add([reversed_ids])))
    assert isinstance(message, messages.Add)
    assert message.requests[0].prompt_token_ids.tolist() == list(range(999, -1, -1))


@pytest.mark.parametrize("token_ids", [b"123", [1, 2], "1234", None, 7, {"data": bytes(4)}])
def test_anything_but_whole_numbers_of_32_bits_is_no_prompt(token_ids: object) -> None:
    sent = {"type": "add", "requests": [{"request_id": "r", "prompt_token_ids": token_ids, "params": {}}]}
    data = msgspec.msgpack.encode(sent)
    with pytest.raises(msgspec.ValidationError, match="token ids"):
        messages.decode_to_engine(data)
    assert messages.ids_in_unreadable(data) == ["r"]


def test_arrays_of_other_types_do_not_travel() -> None:
    wide = msgspec.structs.replace(engine_request("r", [1], SamplingParams()), prompt_token_ids=np.arange(3.0))
    with pytest.raises(TypeError, match="ndarray is unsupported"):
        messages.encode(messages.Add([wide]))


@pytest.mark.parametrize(
    "message",
    [messages.Abort(["a", "b"]), messages.ControlCall(7, "reset_prefix_cache")],
    ids=lambda m: type(m).__name__,
)
def test_other_messages_to_the_engine(message: messages.ToEngine) -> None:
    assert messages.decode_to_engine(messages.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        messages.Ready(3, EngineInfo(128, 1000, 50, 16, 8, True, [{"name": "x"}]), EngineStats(is_paused=True)),
        messages.Failed(1, "A sentence.", True, False),
        messages.OutputBatch(
            2,
            StepOutputs(
                ["q", "s"],
                [7, 0],
                [
                    EngineOutput(
                        "r",
                        [1, 2],
                        finish_reason="stop",
                        stop_reason=2,
                        logprobs=[TokenLogprobs([1, 5], [-0.5, float("-inf")], 2)],
                        num_cached_tokens=16,
                        times=RequestTimes(1.0, 2.0),
                    )
                ],
                logprobs={1: [TokenLogprobs([0, 5], [-0.5, float("-inf")], 2)]},
            ),
            EngineStats(num_running=1, cache_usage=0.25),
        ),
        messages.ControlReply(9, False),
    ],
    ids=lambda m: type(m).__name__,
)
def test_messages_from_the_engine(message: messages.FromEngine) -> None:
    assert messages.decode_from_engine(messages.encode(message)) == message


@given(st.binary(max_size=64))
def test_noise_is_refused(data: bytes) -> None:
    for decode in (messages.decode_to_engine, messages.decode_from_engine):
        with pytest.raises(msgspec.MsgspecError):
            decode(data)


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, object(), {"deep": [{1, 2}, object]}])
def test_extra_args_that_cannot_travel_are_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="extra_args") as caught:
        messages.check_sendable(SamplingParams(extra_args={"x": value}))
    assert caught.value.param == "extra_args"


def test_extra_args_that_can_travel_pass() -> None:
    messages.check_sendable(SamplingParams(extra_args={"x": [1, "a", None, {"y": 2.5}]}))


def test_requests_in_a_message_that_cannot_be_read_are_known() -> None:
    params = SamplingParams()
    params.temperature = -5.0
    sent = [engine_request("good", [1], SamplingParams()), engine_request("bad", [1], params)]
    data = messages.encode(messages.Add(sent))
    with pytest.raises(msgspec.MsgspecError):
        messages.decode_to_engine(data)
    assert messages.ids_in_unreadable(data) == ["good", "bad"]
    for other in (b"", b"\x81", messages.encode(messages.Abort(["a"]))):
        assert messages.ids_in_unreadable(other) == []


@pytest.mark.parametrize("num_rows", [1, 5, 6, 17])
def test_log_probabilities_of_long_prompts_are_spread_over_messages(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_ENTRIES", 10)
    rows = [TokenLogprobs([place, 7], [-0.5, -1.0], 2) for place in range(num_rows)]
    last = EngineOutput("a", [5], finish_reason="length", prompt_logprobs=rows)
    others = [EngineOutput("b", [6]), last]
    parts = messages.in_parts(StepOutputs(["c"], [8], others))
    assert all(len(output.prompt_logprobs or ()) <= 5 for part in parts for output in part.others)
    assert [row for part in parts for output in part.others for row in output.prompt_logprobs or ()] == rows
    assert len(parts) == -(-num_rows // 5)
    for part in parts[:-1]:
        assert [(output.request_id, output.new_token_ids) for output in part] == [("a", [])]
    whole = parts[-1]
    assert (whole.request_ids, whole.token_ids) == (["c"], [8])
    assert [(output.request_id, output.finish_reason) for output in whole.others] == [("b", None), ("a", "length")]


@pytest.mark.parametrize("prompt_logprobs", [None, 2])
def test_a_prompt_of_many_completions_travels_once(prompt_logprobs: int | None) -> None:
    processor = InputProcessor(
        EngineInfo(4096, 1000, 50, 16, 8, True), None, eos_token_ids=[2], default_params={}, max_logprobs=20, seed=0
    )
    params = SamplingParams(
        n=100, logit_bias={5: 1.0}, prompt_logprobs=prompt_logprobs, seed=7, max_tokens=3, detokenize=False
    )
    children = processor.process("r", [1] * 2000, params, cache_salt="s", priority=3).children
    for child in children:
        child.client = "somebody"
    data = messages.encode(messages.Add.of(children))
    assert len(data) < 10_000
    assert messages.ids_in_unreadable(data) == [child.request_id for child in children]
    message = messages.decode_to_engine(data)
    assert isinstance(message, messages.Add)
    assert as_dicts(message.all_requests()) == as_dicts(children)


def test_what_has_begun_travels_by_itself() -> None:
    leader = engine_request("0_r", [1, 2], SamplingParams(), leader_id="0_r")
    follower = msgspec.structs.replace(leader, request_id="1_r")
    alone = engine_request("x", [3], SamplingParams())
    for requests in (
        [],
        [leader],
        [leader, alone],
        [alone, leader],
        [leader, msgspec.structs.replace(follower, output_token_ids=as_token_ids([5]))],
        [msgspec.structs.replace(leader, output_token_ids=as_token_ids([5])), follower],
        [leader, msgspec.structs.replace(follower, prompt_token_ids=as_token_ids([1, 3]))],
        [leader, msgspec.structs.replace(follower, leader_id="y")],
        [msgspec.structs.replace(leader, leader_id=None), msgspec.structs.replace(follower, leader_id=None)],
    ):
        message = messages.Add.of(requests)
        assert not message.followers and message.all_requests() == requests
    assert messages.Add.of([leader, follower]).followers
