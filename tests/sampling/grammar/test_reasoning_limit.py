"""Thoughts end when their budget does, however their tags are spelled."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.records import ReasoningTags
from octavo.sampling.grammar.constraint import Constraint
from octavo.sampling.grammar.reasoning_limit import ReasoningLimit

START, END = [7, 8], [9, 8, 9]
TOKENS = st.integers(0, 9)


def write(limit: ReasoningLimit, wishes: list[int]) -> list[int]:
    """What a model with such wishes writes under the limit."""
    text: list[int] = []
    for wish in wishes:
        forced = limit.forced_token
        text.append(wish if forced is None else forced)
        limit.accept(text[-1])
    return text


def num_thought_tokens(text: list[int], *, is_open: bool) -> int:
    """Tokens of a text's thoughts without tags; a tag that is not whole yet counts."""
    rest = " ".join(map(str, text)) + " "
    start, end = ("".join(f"{token} " for token in tag) for tag in (START, END))
    found, is_inside = 0, is_open
    while rest:
        piece, _, rest = rest.partition(end if is_inside else start)
        found += len(piece.split()) if is_inside else 0
        is_inside = not is_inside
    return found


@given(st.lists(TOKENS, max_size=60), st.integers(0, 12), st.booleans())
@settings(max_examples=300)
def test_thoughts_keep_to_their_budget(wishes: list[int], budget: int, is_open: bool) -> None:
    text = write(ReasoningLimit(budget, ReasoningTags([START], END, is_open)), wishes)
    # A thought may seem to end when its budget does, and then go on.
    assert num_thought_tokens(text, is_open=is_open) <= budget + len(END)


@given(st.lists(TOKENS, max_size=40), st.booleans())
@settings(max_examples=100)
def test_a_large_budget_changes_nothing(wishes: list[int], is_open: bool) -> None:
    assert write(ReasoningLimit(1000, ReasoningTags([START], END, is_open)), wishes) == wishes


def test_the_end_tag_follows_the_last_token_of_the_budget() -> None:
    assert write(ReasoningLimit(3, ReasoningTags([START], END, True)), [1] * 9) == [1, 1, 1, 9, 8, 9, 1, 1, 1]
    assert write(ReasoningLimit(0, ReasoningTags([START], END, True)), [1] * 5) == [9, 8, 9, 1, 1]
    # The model opens the thought itself, and a second one finds nothing left.
    wishes = [1, 7, 8, 1, 1, 1, 1, 1, 1, 7, 8, 1, 1, 1, 5]
    assert write(ReasoningLimit(2, ReasoningTags([START], END)), wishes) == [
        1,
        7,
        8,
        1,
        1,
        9,
        8,
        9,
        1,
        7,
        8,
        9,
        8,
        9,
        5,
    ]


def test_words_may_lead_to_the_end_tag() -> None:
    tags = ReasoningTags([START], END, True, forced_end=[2, 3, *END])
    limit = ReasoningLimit(2, tags)
    assert write(limit, [1] * 9) == [1, 1, 2, 3, 9, 8, 9, 1, 1]
    assert limit.num_tokens == 2
    # The model's own end tag still ends it, and words that it has begun are finished.
    assert write(ReasoningLimit(9, tags), [1, *END, 1]) == [1, *END, 1]
    assert write(ReasoningLimit(2, tags), [1, 1, 2, 1, 1, 1, 1, 4]) == [1, 1, 2, 3, 9, 8, 9, 4]


def test_a_tag_begun_by_the_model_is_finished_for_it() -> None:
    assert write(ReasoningLimit(2, ReasoningTags([START], END, True)), [1, 1, 9, 1, 1, 4]) == [1, 1, 9, 8, 9, 4]
    assert write(ReasoningLimit(1, ReasoningTags([], END, True)), [9, 8, 1, 1, 1, 1, 4]) == [9, 8, 1, 9, 8, 9, 4]


def test_masks_leave_the_forced_token() -> None:
    mask = np.full(3, -1, np.int32)
    tags = ReasoningTags([[3]], [63], True)
    Constraint(None, limit=ReasoningLimit(5, tags)).fill(mask[None])
    assert (mask == -1).all()
    constraint = Constraint(None, earlier=[1, 2], limit=ReasoningLimit(2, tags))
    constraint.fill(mask[None])
    assert mask.view(np.uint32).tolist() == [0, 1 << 31, 0]
    assert constraint.accept([63]) and not constraint.is_finished
    mask[:] = -1
    constraint.fill(mask[None])
    assert (mask == -1).all()
