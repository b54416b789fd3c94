"""Repetitions are seen when they are there, and only then."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.records import RepetitionDetectionParams, SamplingParams
from octavo.sampling.repetition import RepetitionDetector


def ends_in_repetitions(text: list[int], params: RepetitionDetectionParams) -> bool:
    for size in range(max(1, params.min_pattern_size), params.max_pattern_size + 1):
        pattern = text[-size:]
        if len(text) >= size * params.min_count and text[-size * params.min_count :] == pattern * params.min_count:
            return True
    return False


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 4), st.integers(1, 6), st.integers(2, 4))
@settings(max_examples=300)
def test_as_seen_by_looking_at_the_whole_text(text: list[int], smallest: int, largest: int, count: int) -> None:
    params = RepetitionDetectionParams(largest, min(smallest, largest), count)
    detector = RepetitionDetector(params)
    for length, token_id in enumerate(text, 1):
        assert detector.push(token_id) == ends_in_repetitions(text[:length], params)


def test_a_replay_goes_on_where_it_was() -> None:
    params = RepetitionDetectionParams(3, 2, 3)
    assert RepetitionDetector(params, [1, 2, 1, 2, 1]).push(2)
    assert not RepetitionDetector(params, [1, 2, 1, 2, 1]).push(1)


def test_the_answer_ends_with_the_token_that_repeats_and_not_before_its_least_length() -> None:
    params = RepetitionDetectionParams(2, 1, 3)
    detector = RepetitionDetector(params)
    assert detector.accept([5, 1, 1]) == 3 and detector.finish_reason is None
    assert detector.accept([1, 7]) == 1 and detector.finish_reason == "repetition"
    patient = RepetitionDetector(params, [5, 1], min_tokens=6)
    assert patient.accept([1, 1, 1]) == 3 and patient.finish_reason is None
    assert patient.accept([1, 1]) == 1 and patient.finish_reason == "repetition"


@pytest.mark.parametrize("values", [(1000, 1, 2), (3, 4, 2), (3, 1, 1), (3, -1, 2), (3, 1, 1 << 20)])
def test_wrong_parameters_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="repetition_detection"):
        SamplingParams(repetition_detection=RepetitionDetectionParams(*values))
