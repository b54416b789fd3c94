"""Masks are filled side by side, each by its row's rules."""

import threading

import numpy as np
import pytest

from octavo.sampling import token_masks
from octavo.sampling.grammar.constraint import Constraint
from octavo.sampling.rules import BoundRow
from octavo.sampling.token_masks import fill_masks


class Numbered:
    """A grammar whose mask is its number, and which notes who asks."""

    is_finished = False

    def __init__(self, number: int, threads: set[int], together: threading.Barrier | None = None) -> None:
        self._number, self._threads, self._together = number, threads, together

    def accept(self, token_id: int) -> bool:
        return True

    def rollback(self, num_tokens: int) -> None:
        pass

    def fill(self, mask: np.ndarray) -> None:
        if self._together is not None:
            self._together.wait(30)
        self._threads.add(threading.get_ident())
        mask.fill(self._number)


def test_several_rules_of_a_row_allow_what_all_of_them_allow() -> None:
    rules = [Constraint(Numbered(number, set())) for number in (0b0111, 0b1101, 0b0110)]
    masks = fill_masks([BoundRow(rules), BoundRow([])], 1)
    assert masks.tolist() == [[0b0100], [-1]]


@pytest.mark.parametrize("count", [0, 1, 3, 8, 33])
def test_each_constraint_writes_its_own_mask(count: int) -> None:
    masks = fill_masks([BoundRow([Constraint(Numbered(number, set()))]) for number in range(count)], 3)
    assert masks.tolist() == [[number] * 3 for number in range(count)]


def test_many_masks_are_filled_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_masks, "_num_threads", lambda: 2)
    threads: set[int] = set()
    together = threading.Barrier(2)
    masks = fill_masks([BoundRow([Constraint(Numbered(number, threads, together))]) for number in range(8)], 1)
    assert len(threads) == 2 and masks[:, 0].tolist() == list(range(8))


def test_a_grammar_that_fails_ends_its_own_request_only() -> None:
    class Failing(Numbered):
        def fill(self, mask: np.ndarray) -> None:
            raise RuntimeError("broken")

    constraints = [Constraint(Failing(0, set()) if number == 5 else Numbered(number, set())) for number in range(9)]
    masks = fill_masks([BoundRow([constraint]) for constraint in constraints], 1)
    assert [number for number, constraint in enumerate(constraints) if constraint.error] == [5]
    assert masks[:, 0].tolist() == [0, 1, 2, 3, 4, -1, 6, 7, 8]
