"""Who is turned away when much waits, and when they are told to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import QueueFullError
from octavo.inputs.gate import QueueGate


def admits(gate: QueueGate, client: str = "", num_tokens: int = 0) -> bool:
    try:
        gate.check(client, num_tokens)
    except QueueFullError:
        return False
    return True


def test_a_full_queue_is_full_until_somebody_leaves() -> None:
    gate = QueueGate(2, 1, None)
    for number in range(3):
        gate.check("", 5)
        gate.enter(f"{number}", "", 5)
    with pytest.raises(QueueFullError, match="3 requests are in flight") as caught:
        gate.check("")
    assert caught.value.reason == "queue_full"
    gate.leave("1")
    assert admits(gate)


def test_tokens_count_until_the_first_answer() -> None:
    gate = QueueGate(9, None, 100)
    gate.enter("a", "", 90)
    with pytest.raises(QueueFullError, match=r"90 prompt tokens wait.*20 more.*100") as caught:
        gate.check("", 20)
    assert caught.value.reason == "token_limit"
    assert admits(gate, num_tokens=10)
    gate.begin("a")
    gate.begin("a")
    gate.begin("unknown")
    assert admits(gate, num_tokens=10**9), "nothing waits any more"
    gate.enter("b", "", 80)
    assert admits(gate, num_tokens=20) and not admits(gate, num_tokens=21)


def test_a_prompt_beyond_the_limit_is_let_in_when_nothing_waits() -> None:
    gate = QueueGate(9, None, 100)
    assert admits(gate, num_tokens=500)
    gate.enter("a", "", 500)
    assert not admits(gate, num_tokens=1)


def test_one_client_cannot_shut_out_another() -> None:
    gate = QueueGate(2, 8, 100)
    for number in range(10):
        gate.enter(f"{number}", "flood", 10)
    assert not admits(gate, "flood")
    assert admits(gate, "small", 10)
    for number in range(5):
        assert admits(gate, "small", 10)
        gate.enter(f"small {number}", "small", 10)
    assert not admits(gate, "small")


def test_clients_without_number_do_not_get_around_the_limit() -> None:
    gate = QueueGate(2, 8, None)
    num_entered = 0
    for number in range(100):
        if admits(gate, f"client {number}"):
            gate.enter(f"{number}", f"client {number}", 1)
            num_entered += 1
    assert num_entered <= 20


def test_the_time_to_come_back_follows_how_quickly_requests_end() -> None:
    now = 0.0
    gate = QueueGate(1, 4, None, clock=lambda: now)
    for number in range(10):
        gate.enter(f"old {number}", "", 1)
        now += 2.0
        gate.leave(f"old {number}")
    for number in range(5):
        gate.enter(f"{number}", "", 1)
    with pytest.raises(QueueFullError) as caught:
        gate.check("")
    assert 6 <= caught.value.retry_after <= 9  # four wait, two seconds each
    now += 10_000
    with pytest.raises(QueueFullError) as caught:
        gate.check("")
    assert caught.value.retry_after == 60


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(0, 9)), max_size=60))
def test_the_books_balance(actions: list[tuple[str, int, int]]) -> None:
    gate = QueueGate(2, 3, 100)
    inside: dict[str, tuple[str, int]] = {}
    for number, (client, num_tokens, choice) in enumerate(actions):
        if inside and choice < 3:
            name = sorted(inside)[choice % len(inside)]
            gate.leave(name)
            del inside[name]
        elif admits(gate, client, num_tokens):
            gate.enter(f"{number:03}", client, num_tokens)
            inside[f"{number:03}"] = (client, num_tokens)
        assert len(inside) <= 10
        waiting = sum(tokens for _, tokens in inside.values())
        if waiting:
            with pytest.raises(QueueFullError, match=f"^{waiting} prompt tokens wait|requests are in flight"):
                gate.check("a", 1000)
    for name in inside:
        gate.leave(name)
    assert not gate._num_requests and not gate._num_tokens, "clients that are gone are forgotten"
    assert admits(gate, "a", 10**9)


def test_requests_are_limited_in_all() -> None:
    gate = QueueGate(9, None, None, 2)
    for number in range(2):
        gate.check("", 5)
        gate.enter(f"{number}", "", 5)
    gate.begin("0")
    with pytest.raises(QueueFullError, match="2 requests are in flight"):
        gate.check("")
    gate.leave("0")
    assert admits(gate)
    # The lower of both limits counts.
    both = QueueGate(1, 1, None, 5)
    both.enter("0", "", 1)
    both.enter("1", "", 1)
    assert not admits(both)
