"""What binds a request: where its grammar begins, when its text may end, and what happens when a grammar gives up."""

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.errors import RequestFailedError
from octavo.records import ReasoningTags
from octavo.sampling.grammar.constraint import MAX_TAIL_GAP, Constraint
from octavo.sampling.grammar.reasoning_limit import ReasoningLimit

END = 40
TAGS = ReasoningTags([[3]], [6], False)
VOCAB = 64


class Countdown:
    """Allows token 1 so many times, may end after each, and must end at the last."""

    def __init__(self, count: int, gives_up_at: int = -1) -> None:
        self._left = count
        self._gives_up_at = gives_up_at
        self.is_finished = False

    def accept(self, token_id: int) -> bool:
        self._check()
        if token_id == END:
            self.is_finished = True
        elif token_id != 1 or not self._left:
            return False
        else:
            self._left -= 1
        return True

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self._left += not self.is_finished
            self.is_finished = False

    def fill(self, mask: NDArray[np.int32]) -> None:
        self._check()
        words = np.zeros(VOCAB // 32, np.uint32)
        for token_id in [END, 1] if self._left else [END]:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        mask[:] = words.view(np.int32)

    def _check(self) -> None:
        if self._left == self._gives_up_at:
            raise RequestFailedError("The grammar has grown too large.")


def allowed(constraint: Constraint) -> set[int]:
    mask = np.full(VOCAB // 32, -1, np.int32)
    constraint.fill(mask[None])
    words = mask.view(np.uint32)
    return {token_id for token_id in range(VOCAB) if words[token_id // 32] >> token_id % 32 & 1}


ALL = set(range(VOCAB))


def allowed_behind(constraint: Constraint, *drafts: int) -> list[set[int]]:
    """What may come next, and behind each of the drafts."""
    masks = np.full((1 + len(drafts), VOCAB // 32), -1, np.int32)
    constraint.fill(masks, drafts)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [set(row.nonzero()[0].tolist()) for row in bits]


def test_masks_look_behind_drafts_and_leave_the_state_as_it_was() -> None:
    constraint = Constraint(Countdown(3), start_after=[7, 8], stop_ids=[END], limit=ReasoningLimit(9, TAGS))
    assert allowed_behind(constraint, 7, 8, 1, END, 5) == [ALL, ALL, {1, END}, {1, END}, ALL, ALL]
    assert allowed_behind(constraint, 7, 8, 5, 1) == [ALL, ALL, {1, END}, ALL, ALL], "5 is not allowed"
    assert constraint.accept([7, 8, 1]) == 3
    assert allowed_behind(constraint, 1, 1, END) == [{1, END}, {1, END}, {END}, ALL]
    assert allowed_behind(constraint, 1, END) == [{1, END}, {1, END}, ALL]
    assert constraint.accept([1, 1, END, 9]) == 3 and constraint.finish_reason == "stop" and constraint.error is None


def test_drafts_of_reasoning_count_towards_its_limit() -> None:
    constraint = Constraint(None, limit=ReasoningLimit(2, TAGS))
    assert allowed_behind(constraint, 3, 1, 2, 6) == [ALL, ALL, ALL, {6}, ALL]
    assert allowed_behind(constraint, 3, 1, 2, 6) == [ALL, ALL, ALL, {6}, ALL]


def test_a_grammar_that_gives_up_behind_a_draft_ends_nothing_yet() -> None:
    constraint = Constraint(Countdown(3, gives_up_at=2))
    assert allowed_behind(constraint, 1, 1)[0] == {1, END}
    assert constraint.error is None and constraint.accept([1]) == 1
    assert constraint.accept([1]) == 0 and constraint.error == "The grammar has grown too large."


def test_a_text_may_not_end_too_early_unless_the_grammar_says_so() -> None:
    constraint = Constraint(Countdown(3), min_tokens=2, stop_ids=[END])
    assert allowed(constraint) == {1}
    assert constraint.accept([1]) and allowed(constraint) == {1}
    assert constraint.accept([1]) and allowed(constraint) == {1, END}
    short = Constraint(Countdown(1), min_tokens=9, stop_ids=[END])
    assert short.accept([1]) and allowed(short) == {END}
    assert short.accept([END]) and short.is_finished
    assert allowed(short) == ALL


def test_what_comes_before_the_mark_is_free() -> None:
    constraint = Constraint(Countdown(2), start_after=[7, 8], stop_ids=[END])
    for token_id in (5, 7, 7, END):
        assert allowed(constraint) == ALL and constraint.accept([token_id])
    assert constraint.accept([7]) and allowed(constraint) == ALL
    assert constraint.accept([8]) and allowed(constraint) == {1, END}
    assert not constraint.accept([5])


def test_the_mark_may_have_a_tail() -> None:
    """A header such as gpt-oss's: <final> <json> <message>, the middle of which may be missing."""

    def bound(*token_ids: int) -> Constraint:
        return Constraint(Countdown(2), start_after=[7, 8], start_after_tail=[9], stop_ids=[END], earlier=token_ids)

    for begun in (
        (7, 8, 9),
        (5, 7, 8, 6, 9),
        (7, 8, *[6] * MAX_TAIL_GAP, 9),
        (7, 8, *[6] * 99, 7, 8, 9),
        (7, 8, 7, 8, 9),
    ):
        assert allowed(bound(*begun)) == {1, END}
    for free in ((7, 8), (9,), (7, 9, 8), (7, 8, *[6] * (MAX_TAIL_GAP + 1), 9)):
        assert allowed(bound(*free)) == ALL


def test_a_replay_goes_on_where_the_text_was() -> None:
    earlier = [3, 7, 8, 1]
    constraint = Constraint(Countdown(2), start_after=[7, 8], stop_ids=[END], earlier=earlier)
    assert allowed(constraint) == {1, END}
    assert constraint.accept([1]) and allowed(constraint) == {END}


@pytest.mark.parametrize("fills_first", [False, True])
def test_a_grammar_that_gives_up_says_why(fills_first: bool) -> None:
    constraint = Constraint(Countdown(3, gives_up_at=2))
    assert constraint.accept([1]) and constraint.error is None
    if fills_first:
        assert allowed(constraint) == ALL
    else:
        assert not constraint.accept([1])
    assert constraint.error == "The grammar has grown too large."


def test_a_text_may_not_end_too_early_before_its_grammar_begins_either() -> None:
    constraint = Constraint(Countdown(2), start_after=[7], min_tokens=2, stop_ids=[END])
    assert allowed(constraint) == ALL - {END}
    assert constraint.accept([3]) and allowed(constraint) == ALL - {END}
    assert constraint.accept([4]) and allowed(constraint) == ALL


def test_tokens_that_the_model_does_not_know_need_no_holding_back() -> None:
    assert allowed(Constraint(Countdown(2), min_tokens=2, stop_ids=[-1, END, VOCAB + 5])) == {1}


@pytest.mark.parametrize("is_filling", [True, False])
def test_whatever_a_library_raises_is_the_end_of_one_request(is_filling: bool) -> None:
    class Broken(Countdown):
        def _check(self) -> None:
            raise RuntimeError("check failed at /cpp/matcher.cc")

    constraint = Constraint(Broken(2))
    if is_filling:
        assert allowed(constraint) == ALL
    else:
        assert not constraint.accept([1])
    assert constraint.error == "The grammar's library failed."


def opened(*earlier: int, openers: list[list[int]]) -> Constraint:
    return Constraint(Countdown(2), start_after=[9], stop_ids=[END], openers=openers, earlier=earlier)


def test_a_text_that_no_tag_opens_is_bound_from_its_first_token() -> None:
    constraint = opened(openers=[[7]])
    assert allowed(constraint) == {1, END, 7}
    assert not opened(openers=[[7]]).accept([5])
    assert constraint.accept([1]) and allowed(constraint) == {1, END}
    assert not constraint.accept([7])


@pytest.mark.parametrize("opener", [[7], [7, 8], [1, 8]])
def test_behind_a_tag_the_grammar_waits_for_the_thoughts_end(opener: list[int]) -> None:
    constraint = opened(openers=[[7], [7, 8]] if opener == [7, 8] else [opener])
    if opener == [1, 8]:
        # The tag begins as the grammar does: that is text.
        assert constraint.accept([1]) and allowed(constraint) == {1, END}
        return
    for token_id in opener[:1]:
        assert constraint.accept([token_id])
    assert allowed(constraint) == ALL
    for token_id in (5, 1, END, 9):
        assert constraint.accept([token_id])
    assert allowed(constraint) == {1, END}


def test_a_tag_of_several_tokens_is_finished_once_it_is_begun() -> None:
    constraint = opened(openers=[[7, 8], [7, 6, 5]])
    assert allowed(constraint) == {1, END, 7}
    assert constraint.accept([7]) and allowed(constraint) == {8, 6}
    assert constraint.accept([6]) and allowed(constraint) == {5}
    assert not opened(7, openers=[[7, 8]]).accept([1])
    assert constraint.accept([5]) and allowed(constraint) == ALL
    assert constraint.accept([9]) and allowed(constraint) == {1, END}
    assert allowed(opened(7, 6, 5, 9, 1, openers=[[7, 8], [7, 6, 5]])) == {1, END}


def test_tags_that_the_model_does_not_know_rule_nothing_out() -> None:
    assert allowed(opened(openers=[[VOCAB + 5]])) == {1, END}
    assert allowed(opened(7, openers=[[7, VOCAB + 5]])) == ALL


def test_a_text_that_nothing_can_open_is_bound_from_the_start() -> None:
    assert allowed(opened(openers=[])) == {1, END}
