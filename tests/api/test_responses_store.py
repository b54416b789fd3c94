"""Responses are kept within limits, each client's own, and conversations go on from any of them."""

import msgspec
import openai
import pytest
from fake_engine import REPLY
from hypothesis import given
from hypothesis import strategies as st
from responses_engine import ScriptedEngine
from running_server import StartServer
from test_responses_api import PATH, client_of, create

from octavo.api.errors import HttpError
from octavo.api.responses import prepare as prepare_module
from octavo.api.responses import store as store_module
from octavo.api.responses.objects import ResponseObject
from octavo.api.responses.store import ResponseStore, StoredTurn


def keep(store: ResponseStore, owner: str, parent: StoredTurn | None = None, size: int = 10) -> str:
    response = ResponseObject(store.new_id(), 0, "m", "completed")
    inputs = [{"type": "message", "id": f"in_{response.id}", "content": "x" * size}]
    store.finish_response(owner, response, inputs, [{"type": "message", "id": f"out_{response.id}"}], parent)
    return response.id


def held(store: ResponseStore) -> int:
    """What is really there."""
    turns = {id(turn): turn for entry in store._entries.values() if entry.turn for turn in entry.turn.chain()}
    return sum(turn.num_bytes for turn in turns.values()) + sum(len(e.body) for e in store._entries.values())


@given(
    st.lists(
        st.tuples(st.sampled_from(["new", "chain", "delete"]), st.integers(0, 50), st.integers(0, 4000)), max_size=60
    ),
    st.integers(1, 6),
    st.integers(1000, 20_000),
)
def test_the_store_counts_what_it_holds(steps: list[tuple[str, int, int]], max_count: int, max_bytes: int) -> None:
    store = ResponseStore(max_count, max_bytes)
    made: list[str] = []
    forgotten: list[StoredTurn] = []
    for what, which, size in steps:
        known = [key for key in made if ("a", key) in store]
        if what == "delete" and known:
            chosen = known[which % len(known)]
            turn = store.get("a", chosen).turn
            assert turn is not None
            forgotten.append(turn)
            store.delete("a", chosen)
        else:
            parents = [store.get("a", key).turn for key in known] + forgotten[-2:]
            parent = parents[which % len(parents)] if what == "chain" and parents else None
            made.append(keep(store, "a", parent, size))
        assert store.num_bytes == held(store)
        assert len(store) <= max_count
        assert store.num_bytes <= max_bytes or not len(store)
    for key in [key for key in made if ("a", key) in store]:
        store.delete("a", key)
    assert (store.num_bytes, len(store), len(store._turn_of_item)) == (0, 0, 0)


def test_the_newest_stay() -> None:
    store = ResponseStore(2, 1 << 20)
    first, second, third = (keep(store, "a") for _ in range(3))
    with pytest.raises(HttpError, match="make room"):
        store.get("a", first)
    assert store.get("a", second) and store.get("a", third)


def test_a_conversation_outlives_its_deleted_beginning() -> None:
    store = ResponseStore(10, 1 << 20)
    first = keep(store, "a")
    second = keep(store, "a", store.get("a", first).turn)
    store.delete("a", first)
    turn = store.get("a", second).turn
    assert turn is not None
    assert [item["id"] for item in turn.items()] == [
        *(f"in_{first}", f"out_{first}", f"in_{second}", f"out_{second}"),
    ]
    assert store.recall("a", [f"out_{first}"])[f"out_{first}"]["id"] == f"out_{first}"
    assert not store.recall("b", [f"out_{first}"])


def test_an_id_says_which_process_knows_it() -> None:
    one, other = ResponseStore(10, 1 << 20, 2), ResponseStore(10, 1 << 20, 2)
    with pytest.raises(HttpError, match="another of the server's 2 API processes"):
        other.get("a", keep(one, "a"))
    with pytest.raises(HttpError, match="before the server was started"):
        ResponseStore(10, 1 << 20).get("a", keep(one, "a"))
    with pytest.raises(HttpError, match="stores no responses"):
        ResponseStore(0, 0).get("a", "resp_x")


def test_clients_see_only_their_own(start_server: StartServer) -> None:
    server = start_server(api_key=["one", "two"])
    one, two = (openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in ("one", "two"))
    answer = one.responses.create(model="fake/model", input="secret")
    assert one.responses.retrieve(answer.id).output_text == REPLY
    for ask in (two.responses.retrieve, two.responses.cancel, two.responses.delete, two.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(answer.id)
    for extra in ({"previous_response_id": answer.id}, {"input": [{"id": answer.output[0].id}]}):
        with pytest.raises(openai.NotFoundError):
            two.responses.create(**{"model": "fake/model", "input": "hi", **extra})  # type: ignore[call-overload]
    # Anthropic's header names the same client.
    path = f"{PATH}/{answer.id}"
    assert server.client.get(path, headers={"x-api-key": "one"}).status_code == 200
    assert server.client.get(path, headers={"x-api-key": "two"}).status_code == 404
    # What is no key does not count, wherever it stands.
    for other in ("Basic abc", "Bearer wrong", "Bearer"):
        headers = {"authorization": other, "x-api-key": "one"}
        assert server.client.get(path, headers=headers).status_code == 200


def test_what_one_request_recalls_is_bounded(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store_module, prepare_module):
        monkeypatch.setattr(module, "MAX_RECALLED_BYTES", 4000)
    server = start_server()
    first = create(server, input="a" * 1000)
    second = create(server, input="b" * 1000, previous_response_id=first["id"])
    third = create(server, input="c" * 1000, previous_response_id=second["id"])
    refused = server.client.post(PATH, json={"input": "d", "previous_response_id": third["id"]})
    assert refused.status_code == 400 and "4000 bytes" in refused.json()["error"]["message"]
    references = [{"type": "item_reference", "id": one["output"][0]["id"]} for one in (first, second, third)]
    refused = server.client.post(PATH, json={"input": references})
    assert refused.status_code == 400 and "4000 bytes" in refused.json()["error"]["message"]
    create(server, input=references[:2])
    refused = server.client.post(PATH, json={"input": references[:1] * 2})
    assert refused.status_code == 400 and "twice" in refused.json()["error"]["message"]


def test_the_official_client_looks_after_responses(start_server: StartServer) -> None:
    engine = ScriptedEngine("one", "two", "three")
    client = client_of(start_server(engine))
    first = client.responses.create(model="fake/model", input="a", instructions="Only once.")
    second = client.responses.create(model="fake/model", input="b", previous_response_id=first.id)
    assert engine.prompts[1] == "<user>a\n<assistant>one\n<user>b\n<assistant>"
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id) == second
    items = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.id for item in items.data] == [items.first_id, items.last_id]
    texts = [item.content[0].text for item in items]  # type: ignore[union-attr]
    assert texts == ["a", "one", "b"]  # over two pages
    # A branch from the first answer.
    client.responses.create(model="fake/model", input="c", previous_response_id=first.id)
    assert engine.prompts[2] == "<user>a\n<assistant>one\n<user>c\n<assistant>"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="fake/model", input="d", previous_response_id=first.id)
    client.responses.create(model="fake/model", input="d", previous_response_id=second.id)
    assert engine.prompts[3].startswith("<user>a\n<assistant>one\n<user>b\n<assistant>two\n")


def test_items_can_be_referred_to(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("one", "two"))
    first = create(server)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    create(server, input=[{"role": "user", "content": "a"}, reference, {"role": "user", "content": "b"}])
    assert server.engine.calls[1]["prompt"] == "<user>a\n<assistant>one\n<user>b\n<assistant>"


def test_not_to_be_stored(start_server: StartServer) -> None:
    server = start_server()
    answer = create(server, store=False)
    assert server.client.get(f"{PATH}/{answer['id']}").status_code == 404
    keeps_none = start_server(response_store_count=0)
    answer = create(keeps_none)
    missing = keeps_none.client.get(f"{PATH}/{answer['id']}")
    assert missing.status_code == 404 and "stores no responses" in missing.json()["error"]["message"]
    refused = keeps_none.client.post(PATH, json={"input": "hi", "background": True})
    assert refused.status_code == 400


def test_an_id_of_the_clients_own(start_server: StartServer) -> None:
    server = start_server()
    assert create(server, request_id="resp_mine")["id"] == "resp_mine"
    again = server.client.post(PATH, json={"input": "hi", "request_id": "resp_mine"})
    assert again.status_code == 400
    odd = create(server, request_id="../../etc/passwd\n")["id"]
    assert odd == "resp_....etcpasswd"
    assert msgspec.json.decode(server.client.get(f"{PATH}/{odd}").content)["id"] == odd


def test_log_probabilities_are_kept_with_the_answer_but_not_with_the_conversation(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("one"))
    answer = create(server, top_logprobs=2)
    assert len(answer["output"][0]["content"][0]["logprobs"]) == 3
    kept = server.client.get(f"{PATH}/{answer['id']}").json()
    assert kept["output"] == answer["output"]
    create(server, input="go on", previous_response_id=answer["id"])
    reference = [{"type": "item_reference", "id": answer["output"][0]["id"]}]
    referring = create(server, input=reference)
    (item,) = server.client.get(f"{PATH}/{referring['id']}/input_items").json()["data"]
    assert item["content"] == [{"type": "output_text", "text": "one", "annotations": [], "logprobs": []}]
