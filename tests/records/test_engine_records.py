"""Records that cross between processes: what goes in comes out."""

import msgspec
from engine_requests import as_dicts, engine_request
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine import messages
from octavo.records import (
    EngineOutput,
    EngineRequest,
    EngineStats,
    RequestTimes,
    SamplingParams,
    TokenLogprobs,
    as_token_ids,
)

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.floats(0, 2e9)

REQUESTS = st.builds(
    engine_request,
    request_id=TEXT,
    prompt_token_ids=TOKENS,
    params=st.builds(SamplingParams, temperature=st.floats(0, 2), max_tokens=st.integers(1, 99)),
    seed=st.integers(0, (1 << 64) - 1),
    eos_token_ids=TOKENS,
    bad_words_token_ids=st.lists(TOKENS, max_size=2),
    output_token_ids=TOKENS,
    priority=st.integers(-(1 << 31), 1 << 31),
    arrival_time=TIMES,
    cache_salt=st.none() | TEXT,
    leader_id=st.none() | TEXT,
    client_index=st.integers(0, 63),
)
LOGPROBS = st.builds(
    TokenLogprobs, TOKENS, st.lists(st.floats(max_value=0, allow_nan=False), max_size=5), st.integers(1, 1 << 20)
)
OUTPUTS = st.builds(
    EngineOutput,
    request_id=TEXT,
    new_token_ids=TOKENS,
    finish_reason=st.sampled_from([None, "stop", "length", "abort", "error"]),
    stop_reason=st.none() | st.integers(0, 99),
    error=st.none() | TEXT,
    logprobs=st.none() | st.lists(LOGPROBS, max_size=2),
    prompt_logprobs=st.none() | st.lists(LOGPROBS, max_size=2),
    num_cached_tokens=st.none() | st.integers(0, 99),
    times=st.none() | st.builds(RequestTimes, TIMES, TIMES, TIMES, TIMES, st.integers(0, 9)),
)


@settings(max_examples=60)
@given(request=REQUESTS)
def test_a_request_survives_the_way_to_the_engine(request: EngineRequest) -> None:
    message = messages.decode_to_engine(messages.encode(messages.Add([request])))
    assert isinstance(message, messages.Add)
    assert as_dicts(message.requests) == as_dicts([request])


@settings(max_examples=60)
@given(outputs=st.lists(OUTPUTS, max_size=3))
def test_outputs_survive_the_way_back(outputs: list[EngineOutput]) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(outputs), type=list[EngineOutput]) == outputs


def test_what_is_at_its_default_takes_no_room() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(EngineOutput("a", [5]))) == {
        "request_id": "a",
        "new_token_ids": [5],
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(EngineStats(num_running=2))) == {"num_running": 2}


def test_defaults_of_a_request_cannot_reach_another() -> None:
    one = EngineRequest("a", as_token_ids([1]), SamplingParams())
    one.eos_token_ids.append(3)
    assert EngineRequest("b", as_token_ids([1]), SamplingParams()).eos_token_ids == []
    assert len(one.output_token_ids) == 0
    assert not one.output_token_ids.flags.writeable
