"""Responses made in the background are polled, watched from any event on, and cancelled."""

import asyncio

import openai
import pytest
from fake_engine import REPLY
from hypothesis import given
from hypothesis import strategies as st
from responses_engine import ScriptedEngine, call_text, check_order
from running_server import RunningServer, StartServer
from test_connections import until
from test_responses_api import PATH, THINKING, WEATHER, client_of, create, parse_events

from octavo.api.responses import events
from octavo.api.responses.background import EventLog
from octavo.errors import InvalidRequestError


def poll(server: RunningServer, response_id: str) -> str:
    status: str = server.client.get(f"{PATH}/{response_id}").json()["status"]
    return status


def test_an_answer_is_polled(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine(REPLY, step_seconds=0.005))
    answer = create(server, background=True)
    assert answer["status"] == "queued" and answer["output"] == []
    until(lambda: poll(server, answer["id"]) in ("in_progress", "completed"))
    until(lambda: poll(server, answer["id"]) == "completed")
    done = server.client.get(f"{PATH}/{answer['id']}").json()
    assert done["output"][0]["content"][0]["text"] == REPLY
    assert done["background"] is True and done["completed_at"] >= done["created_at"]


def test_events_from_any_number_on(start_server: StartServer) -> None:
    engine = ScriptedEngine("Hm.</think>" + call_text("weather", "{}"), step_seconds=0.002)
    server = start_server(engine, **THINKING)
    first = create(server, background=True, tools=[WEATHER])
    path = f"{PATH}/{first['id']}"
    everything = parse_events(server.client.get(path, params={"stream": True}).text)  # while it is made
    check_order(everything)
    assert [event["type"] for event in everything[:3]] == [
        *("response.created", "response.queued", "response.in_progress")
    ]
    for after in (0, 5, len(everything) - 2, len(everything) - 1, 10_000):
        rest = server.client.get(path, params={"stream": True, "starting_after": after})
        assert (parse_events(rest.text) if rest.text else []) == everything[after + 1 :]
    assert server.client.get(path).json() == everything[-1]["response"]


def test_the_official_client_leaves_and_comes_back(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine(REPLY, step_seconds=0.005))
    client = client_of(server)
    seen = []
    with client.responses.create(model="fake/model", input="hi", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    created = seen[0]
    assert created.type == "response.created"
    last = seen[-1].sequence_number
    seen += client.responses.retrieve(created.response.id, stream=True, starting_after=last)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == REPLY
    assert seen[-1].type == "response.completed"


def test_cancelling(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("Hm.</think>" + REPLY * 100, step_seconds=0.005), **THINKING)
    client = client_of(server)
    answer = client.responses.create(model="fake/model", input="hi", background=True)
    with pytest.raises(openai.BadRequestError, match="still in progress"):
        client.responses.create(model="fake/model", input="hi", previous_response_id=answer.id)
    until(lambda: client.responses.retrieve(answer.id).output_text.startswith(REPLY))
    cancelled = client.responses.cancel(answer.id)
    assert cancelled.status == "cancelled" and server.engine.num_running == 0
    assert client.responses.cancel(answer.id) == cancelled == client.responses.retrieve(answer.id)
    text = server.client.get(f"{PATH}/{answer.id}", params={"stream": True}).text
    check_order(parse_events(text))
    usual = client.responses.create(model="fake/model", input="hi", max_output_tokens=5)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(usual.id)


def test_deleting_what_is_made_ends_it(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine(REPLY * 100, step_seconds=0.005))
    answer = create(server, background=True)
    until(lambda: server.engine.num_running == 1)
    assert server.client.delete(f"{PATH}/{answer['id']}").json() == {
        "id": answer["id"],
        "object": "response",
        "deleted": True,
    }
    assert server.engine.num_running == 0
    assert server.client.get(f"{PATH}/{answer['id']}").status_code == 404


def test_what_can_be_refused_is_refused_at_once(start_server: StartServer) -> None:
    server = start_server()
    assert server.client.post(PATH, json={"input": "x" * 200_000, "background": True}).status_code == 400
    assert server.client.post(PATH, json={"input": "raise", "background": True}).status_code == 400
    assert server.client.post(PATH, json={"input": "hi", "background": True, "store": False}).status_code == 400


def test_a_failure_stands_in_the_response(start_server: StartServer) -> None:
    engine = ScriptedEngine("abcdef")
    assert engine.tokenizer is not None
    engine.tokenizer.chat_templates["default"] = "overload"
    server = start_server(engine)
    answer = create(server, background=True)
    until(lambda: poll(server, answer["id"]) == "failed")
    error = server.client.get(f"{PATH}/{answer['id']}").json()["error"]
    assert error == {"code": "rate_limit_exceeded", "message": "The queue is full."}


def test_only_events_of_the_background_are_kept(start_server: StartServer) -> None:
    server = start_server()
    answer = create(server)
    for params in ({"stream": True}, {"starting_after": 3}):
        assert server.client.get(f"{PATH}/{answer['id']}", params=params).status_code == 400
    for params in ({"starting_after": -5}, {"starting_after": "x"}, {"stream": "maybe"}):
        assert server.client.get(f"{PATH}/{answer['id']}", params=params).status_code == 400


def test_a_server_that_ends_takes_its_background_along(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine(REPLY * 1000, step_seconds=0.005), shutdown_timeout=0)
    answer = create(server, background=True)
    with server.client.stream("GET", f"{PATH}/{answer['id']}", params={"stream": True}) as watched:
        lines = watched.iter_lines()
        first = next(lines)
        server.send_signal()
        told = parse_events("\n".join([first, *lines]))
    server.assert_ends()
    assert server.engine.num_running == 0
    check_order(told)
    assert "shutting down" in told[-1]["response"]["error"]["message"]


@given(st.lists(st.integers(1, 5), max_size=20), st.integers(-1, 100), st.integers(200, 2000))
def test_a_log_gives_what_it_has_from_there_on(batches: list[int], after: int, max_bytes: int) -> None:
    async def run() -> None:
        log = EventLog(max_bytes)
        number = 0
        for size in batches:
            new = [events.ReasoningTextDelta("rs", 0, 0, "x", sequence_number=number + index) for index in range(size)]
            number += size
            await log.append_events(new)
        log.close()
        first = number - len(log._events)
        assert log.num_bytes <= max_bytes or len(log._events) == 1
        try:
            got = [data async for data in log.read(after)]
        except InvalidRequestError:
            assert after + 1 < first
        else:
            assert len(got) == max(0, number - after - 1)
            assert all(b'"sequence_number":%d}' % (after + 1 + i) in data for i, data in enumerate(got))

    asyncio.run(run())


def test_readers_wait_for_what_comes() -> None:
    async def run() -> None:
        log = EventLog()

        async def read() -> int:
            return len([data async for data in log.read(-1)])

        readers = [asyncio.create_task(read()) for _ in range(3)]
        for number in range(5):
            await asyncio.sleep(0)
            await log.append_events([events.ReasoningTextDelta("rs", 0, 0, "x", sequence_number=number)])
        log.close()
        assert await asyncio.gather(*readers) == [5, 5, 5]

    asyncio.run(run())
