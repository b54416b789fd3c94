"""Requests that kill engines are found out, and take no others along."""

from engine_requests import engine_request
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.replay import Replays
from octavo.records import EngineOutput, EngineRequest, SamplingParams, StepOutputs


def request(name: str) -> EngineRequest:
    return engine_request(name, [1], SamplingParams())


def ids(requests: list[EngineRequest]) -> list[str]:
    return [request.request_id for request in requests]


def tokens(name: str, count: int) -> StepOutputs:
    return StepOutputs([name] * count, [1] * count)


def test_a_first_death_replays_all_at_once() -> None:
    replays = Replays()
    requests = [request(name) for name in "abc"]
    replays.enter(requests)
    assert replays.resume(requests) == (requests, [])


def test_suspects_go_one_by_one() -> None:
    replays = Replays()
    requests = [request(name) for name in "abc"]
    replays.enter(requests)
    replays.resume(requests)
    newcomer = request("new")
    replays.enter([newcomer])
    now, guilty = replays.resume([*requests, newcomer])
    assert (ids(now), guilty) == (["new", "a"], [])
    assert replays.note_outputs(tokens("new", 50)) == []
    assert replays.note_outputs(tokens("a", 3)) == []
    assert ids(replays.note_outputs(tokens("a", 1))) == ["b"]
    assert ids(replays.note_outputs(StepOutputs(others=[EngineOutput("b", [1], finish_reason="stop")]))) == ["c"]
    assert replays.note_outputs(tokens("c", 4)) == []


def test_the_next_one_follows_when_a_suspect_leaves() -> None:
    replays = Replays()
    requests = [request(name) for name in "abc"]
    replays.enter(requests)
    replays.resume(requests)
    assert ids(replays.resume(requests)[0]) == ["a"]
    assert replays.forget(["b"]) == []
    assert ids(replays.forget(["a"])) == ["c"]
    assert replays.forget(["c"]) == []


def test_requests_that_came_while_there_was_no_engine_are_not_blamed() -> None:
    replays = Replays()
    waiting = request("waiting")
    for _ in range(10):
        assert Replays().resume([waiting]) == ([waiting], [])
    assert replays.resume([waiting]) == ([waiting], [])


@given(
    count=st.integers(1, 12),
    guilty=st.integers(0, 11),
    fatal_length=st.integers(0, 30),
    delivered=st.integers(0, 3),
)
def test_only_the_guilty_one_fails(count: int, guilty: int, fatal_length: int, delivered: int) -> None:
    """Engines die when one request has so many tokens; ``delivered`` of the step's last tokens are lost each time."""
    poison = str(guilty % count)
    length = dict.fromkeys(map(str, range(count)), 0)
    replays = Replays()
    unfinished = [request(name) for name in length]
    replays.enter(unfinished)
    running = set(length)
    failed: list[str] = []
    num_deaths = 0
    while poison in length:
        if poison in running and length[poison] >= fatal_length - delivered:
            num_deaths += 1
            now, failed = replays.resume([request(name) for name in length])
            for name in failed:
                now += replays.forget([name])
                del length[name]
            running = set(ids(now)) & set(length)
            continue
        outputs = StepOutputs(list(running), [1] * len(running))
        for name in running:
            length[name] += 1
        running |= set(ids(replays.note_outputs(outputs)))
    assert failed == [poison]
    assert num_deaths == 4
