"""Whose turn it is among those that wait."""

import numpy as np
from engine_requests import engine_request
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import Harness
from simulated_device import make_plan

from octavo.cache import RequestCache
from octavo.records import Plan, SamplingParams
from octavo.scheduling import Scheduler
from octavo.scheduling.completion import make_completion
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.request import Request, Status


def waiting(order: int, client: str = "", priority: int = 0) -> Request:
    source = engine_request(f"{client}{order}", [0], SamplingParams(), priority=priority, client=client)
    ids = np.zeros(1, np.int32)
    return Request(make_completion(source, 9, ()), (priority, order), RequestCache(None, [], [], []), ids)


def drain(queue: WaitingQueue, cost: int = 1) -> str:
    """Names of clients in the order of their turns, each turn charged."""
    names = []
    while (request := queue.pop()) is not None:
        names.append(request.source.client)
        queue.charge(request.source.client, cost)
    return "".join(names)


def test_clients_take_turns_however_many_requests_one_has() -> None:
    queue = WaitingQueue()
    for order in range(6):
        queue.push(waiting(order, "a"))
    queue.push(waiting(6, "b"))
    queue.push(waiting(7, "c"))
    assert drain(queue) == "abcaaaaa"


def test_turns_are_counted_in_tokens() -> None:
    queue = WaitingQueue()
    for order in range(8):
        queue.push(waiting(order, "ab"[order % 2]))
    names = []
    while (request := queue.pop()) is not None:
        client = request.source.client
        names.append(client)
        # A's prompts are three times as long; b generates half as many tokens as its prompts have, at twice the price.
        queue.charge(client, *((6, 0) if client == "a" else (1, 1)))
    assert "".join(names[:5]) == "abbab"


def test_nobody_saves_up_turns() -> None:
    queue = WaitingQueue()
    queue.charge("idle", 1)
    queue.charge("busy", 1000)
    queue.push(waiting(0, "busy"))
    drain(queue)
    for order in range(1, 5):
        queue.push(waiting(order, "busy"))
    for order in range(5, 9):
        queue.push(waiting(order, "idle"))
    assert drain(queue) == "idlebusy" * 4


def test_priority_goes_before_turns() -> None:
    queue = WaitingQueue()
    queue.charge("a", 50)
    queue.push(waiting(0, "b", priority=1))
    queue.push(waiting(1, "a", priority=0))
    assert drain(queue) == "ab"


def test_clients_without_number_do_not_fill_the_memory() -> None:
    queue = WaitingQueue()
    queue.push(waiting(0, "patient"))
    for number in range(20_000):
        queue.charge(f"user {number}", 5)
    assert len(queue._served) <= 4097
    assert drain(queue) == "patient"


actions = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abc"), st.integers(0, 2)),
        st.tuples(st.just("pop"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("finish"), st.integers(0, 30), st.none()),
    ),
    max_size=150,
)


@given(actions)
def test_against_a_list_that_is_searched(actions: list[tuple]) -> None:
    """The same answers as from looking at every request each time."""
    queue = WaitingQueue()
    everyone: list[Request] = []
    served: dict[str, float] = {}
    now_served, num_pushed = 0.0, 0
    for kind, first, second in actions:
        if kind == "push":
            request = waiting(num_pushed, first, second)
            num_pushed += 1
            if not any(other.source.client == first for other in everyone):
                served[first] = max(served.get(first, 0.0), now_served)
            everyone.append(request)
            queue.push(request)
        elif kind == "pop":
            expected = min(
                everyone,
                key=lambda r: (r.rank[0], served[r.source.client], r.rank[1]),
                default=None,
            )
            # Among equals of one client the rank decides, which the key says as well.
            assert queue.pop() is expected
            if expected is not None:
                everyone.remove(expected)
                client = expected.source.client
                now_served = max(now_served, served[client])
                queue.charge(client, first)
                served[client] = max(served[client], now_served) + first
                if second:
                    # What could not be let in waits again.
                    if not any(other.source.client == client for other in everyone):
                        served[client] = max(served[client], now_served)
                    everyone.append(expected)
                    queue.push(expected)
        elif everyone:
            request = everyone.pop(first % len(everyone))
            request.status = Status.FINISHED
            queue.discard(request)
        assert len(queue) == len(everyone)


def test_one_blocked_request_for_a_long_time_takes_no_memory() -> None:
    queue = WaitingQueue()
    for order in range(4):
        queue.push(waiting(order, "ab"[order % 2]))
    for _ in range(5000):
        request = queue.pop()
        assert request is not None
        queue.push(request)
    assert len(queue._places) < 100


def _run(plan: Plan, clients: list[str]) -> list[str]:
    """Clients in the order of their requests' first steps; all arrive at once, each with two tokens to generate."""
    harness = Harness(plan, end_share=0.0)
    for number, client in enumerate(clients):
        source = engine_request(f"{number}", [0] * 4, SamplingParams(max_tokens=2), client=client)
        harness.scheduler.add_request(source)
        harness.sources[source.request_id], harness.received[source.request_id] = source, []
    while harness.scheduler.has_unfinished:
        harness.step()
    return [clients[int(request_id)] for request_id in harness.device.admissions]


def test_a_flood_does_not_keep_others_out_of_the_scheduler() -> None:
    order = _run(make_plan(max_num_seqs=2), ["flood"] * 12 + ["small"] * 3)
    assert order.index("small") <= 1
    assert max(index for index, client in enumerate(order) if client == "small") <= 6


def test_without_clients_the_first_to_come_is_the_first_to_run() -> None:
    scheduler = Scheduler(make_plan(max_num_seqs=1))
    for number in range(5):
        scheduler.add_request(engine_request(f"{number}", [0] * 4, SamplingParams(max_tokens=1)))
    assert [scheduler.waiting.pop().request_id for _ in range(5)] == list("01234")  # type: ignore[union-attr]
