"""Sampling parameters: every wrong value is refused by name and range, every right one survives."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.records import RequestOutputKind, SamplingParams, StructuredOutputsParams, sampling_params

# Field, values at the bounds, values past them.
BOUNDS: list[tuple[str, list[Any], list[Any]]] = [
    ("n", [1, 1024], [0, -1, 1025, 10**9]),
    ("presence_penalty", [-2.0, 2.0, 1], [-2.1, 2.1]),
    ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1]),
    ("repetition_penalty", [0.01, 1e6], [0.0, -1.0, 1e7]),
    ("temperature", [0.0, 2, 1e6], [-1.0, -1e-9, 1e7]),
    ("top_p", [1e-6, 1.0, 1], [0.0, -0.5, 1.01]),
    ("top_k", [-1, 0, 50], [-2, 1 << 40]),
    ("min_p", [0.0, 1.0], [-0.1, 1.1]),
    ("seed", [0, -5, (1 << 64) - 1], [1 << 64, -(1 << 63) - 1]),
    ("max_tokens", [1, 1 << 31], [0, -1, (1 << 31) + 1]),
    ("min_tokens", [0, 16], [-1]),
    ("logprobs", [0, -1, 20], [-2, 10**9]),
    ("prompt_logprobs", [0, -1, 20], [-2, 10**9]),
]
NOT_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, "1", [1], {}, 10**400]
FLOATS = ["presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p"]
INTEGERS = ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, right, _ in BOUNDS for value in right])
def test_values_at_the_bounds_are_taken(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, _, wrong in BOUNDS for value in wrong])
def test_values_past_the_bounds_are_refused_by_name_and_range(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{name} must be .*\d.*, got .*\.$") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [*NOT_NUMBERS, True], ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize("name", FLOATS)
def test_what_is_not_a_finite_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name} must be ") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 1.0], ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_not_a_whole_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name} must be ") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 5),
        ("stop", ["x"] * 257),
        ("stop", ["x"] * 10_000),
        ("stop", ["x" * 4097]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", 5),
        ("stop_token_ids", [0] * ((1 << 18) + 1)),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [1.5]),
        ("allowed_token_ids", 5),
        ("bad_words", [""]),
        ("bad_words", [3]),
        ("bad_words", 5),
        ("bad_words", ["x"] * 1025),
        ("bad_words", ["x" * 4097]),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {math.inf: 1.0}),
        ("logit_bias", [1]),
        ("bad_words", "word"),
    ],
)
def test_wrong_lists_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).endswith(".")


def test_all_wrong_keys_of_a_bias_are_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"got the keys 'one', 'two'\.$"):
        SamplingParams(logit_bias={"one": 1.0, 3: 1.0, "two": 1.0})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequestError, match=r"'k7', …\.$"):
        SamplingParams(logit_bias={f"k{number}": 1.0 for number in range(50)})  # type: ignore[misc]


def test_contradictions_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"min_tokens must not exceed max_tokens \(4\), got 5"):
        SamplingParams(max_tokens=4, min_tokens=5)
    with pytest.raises(InvalidRequestError, match="n must be 1 with greedy sampling"):
        SamplingParams(n=2, temperature=0)
    with pytest.raises(InvalidRequestError, match="stop strings need detokenize=True"):
        SamplingParams(stop="x", detokenize=False)


def test_equivalent_spellings_come_to_one_form() -> None:
    params = SamplingParams(stop="x", logprobs=True, seed=-1, logit_bias={"7": 1})  # type: ignore[dict-item]
    assert params.stop == params.stop_strings == ["x"]
    assert params.logprobs == 1
    assert params.seed is None
    assert params.logit_bias == {7: 1}
    assert SamplingParams().stop_token_ids == []


def test_greedy_is_a_temperature_of_next_to_nothing() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy


def test_only_changed_fields_are_shown() -> None:
    assert repr(SamplingParams(temperature=0.5, stop="a")) == "SamplingParams(temperature=0.5, stop=['a'])"
    assert repr(SamplingParams()) == "SamplingParams()"


PARAMS = st.builds(
    SamplingParams,
    n=st.integers(1, 3),
    temperature=st.floats(0.1, 2),
    top_p=st.floats(0.1, 1),
    top_k=st.integers(-1, 50),
    seed=st.none() | st.integers(0, (1 << 64) - 1),
    stop=st.none() | st.lists(st.text(min_size=1, max_size=3), max_size=3),
    stop_token_ids=st.none() | st.lists(st.integers(0, 99), max_size=3),
    max_tokens=st.none() | st.integers(1, 99),
    logprobs=st.none() | st.integers(-1, 5),
    output_kind=st.sampled_from(RequestOutputKind),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3),
    bad_words=st.none() | st.lists(st.text(min_size=1, max_size=3), max_size=2),
    extra_args=st.none()
    | st.dictionaries(st.text(max_size=3), st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=3), max_size=2),
)


@settings(max_examples=60)
@given(params=PARAMS)
def test_a_clone_is_equal_and_shares_nothing_that_can_change(params: SamplingParams) -> None:
    copy = params.clone()
    assert copy == params
    for field in msgspec.structs.fields(SamplingParams):
        value = getattr(params, field.name)
        assert not isinstance(value, (list, dict)) or getattr(copy, field.name) is not value


@settings(max_examples=60)
@given(params=PARAMS)
def test_parameters_survive_the_way_between_processes(params: SamplingParams) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_wrong_values_are_refused_when_decoded_too() -> None:
    with pytest.raises(msgspec.ValidationError, match="temperature must be"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"temperature": -1.0}), type=SamplingParams)


def test_from_optional_takes_none_for_the_default():
    params = SamplingParams.from_optional(
        n=None, temperature=None, top_p=0.5, max_tokens=None, logit_bias={"3": 500, 4: -500}, skip_clone=True
    )
    assert params == SamplingParams(top_p=0.5, max_tokens=None, logit_bias={3: 100.0, 4: -100.0})
    assert SamplingParams.from_optional(watermarking=None, routed_experts_prompt_start=0) == SamplingParams()
    with pytest.raises(InvalidRequestError, match="'watermarking' is not supported"):
        SamplingParams.from_optional(watermarking=True)
    with pytest.raises(InvalidRequestError, match="logit_bias"):
        SamplingParams.from_optional(logit_bias={3: "a lot"})


def test_repr_can_be_read_and_typed_in_again():
    params = SamplingParams(
        n=2, seed=7, stop=["\n"], logprobs=0, output_kind=RequestOutputKind.DELTA, logit_bias={5: -1.0}
    )
    assert repr(SamplingParams()) == "SamplingParams()"
    assert repr(params).startswith(
        "SamplingParams(n=2, seed=7, stop=['\\n'], logprobs=0, output_kind=RequestOutputKind.D"
    )
    assert eval(repr(params)) == params


def test_the_old_name_of_structured_outputs_is_converted(caplog: pytest.LogCaptureFixture) -> None:
    sampling_params._warn_of_guided_decoding.cache_clear()
    form = StructuredOutputsParams(choice=["yes", "no"])
    with caplog.at_level("WARNING"):
        many = [SamplingParams(guided_decoding=form, temperature=0.5) for _ in range(3)]
    assert many == [SamplingParams(structured_outputs=form, temperature=0.5)] * 3
    assert "guided_decoding" not in repr(many[0])
    (record,) = caplog.records
    assert "StructuredOutputsParams" in record.getMessage()


def test_the_old_name_does_not_hide_the_new_one() -> None:
    form = StructuredOutputsParams(choice=["yes", "no"])
    with pytest.raises(InvalidRequestError, match="either structured_outputs or guided_decoding"):
        SamplingParams(guided_decoding=form, structured_outputs=form)
    with pytest.raises(InvalidRequestError, match="guided_decoding must be GuidedDecodingParams, got dict"):
        SamplingParams(guided_decoding={"choice": ["a"]})
