"""Anthropic's clients get keys, refusals and missing routes in their own shape."""

import anthropic
import pytest
from running_server import StartServer

VERSION = {"anthropic-version": "2023-06-01"}


def test_either_header_takes_the_key(start_server: StartServer) -> None:
    client = start_server(api_key=["secret", "other"]).client
    for headers, status in (
        ({"x-api-key": "secret"}, 200),
        ({"x-api-key": "other"}, 200),
        ({"x-api-key": "secretx"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "wrong", "authorization": "Bearer secret"}, 200),
        ({"x-api-key": "secret", "authorization": "Bearer wrong"}, 200),
        ({"x-api-key": "wrong", "authorization": "Basic secret"}, 401),
    ):
        assert client.get("/v1/models", headers=headers).status_code == status, headers


@pytest.mark.parametrize(
    ("path", "headers"), [("/v1/messages", {}), ("/v1/messages/count_tokens", {}), ("/v1/models", VERSION)]
)
def test_a_missing_key(start_server: StartServer, path: str, headers: dict[str, str]) -> None:
    response = start_server(api_key=["secret"]).client.post(path, headers=headers)
    assert response.status_code == 401
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "authentication_error"


def test_routes_that_do_not_exist(start_server: StartServer) -> None:
    client = start_server().client
    body = client.get("/v1/messages/batches").json()
    assert body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "There is no route GET /v1/messages/batches."},
    }
    assert "code" in client.get("/v1/messagesx").json()["error"]


def test_behind_a_proxy(start_server: StartServer) -> None:
    response = start_server(api_key=["secret"], root_path="/llm").client.post("/v1/messages")
    assert response.json()["type"] == "error"


def test_models_are_listed_for_both(start_server: StartServer) -> None:
    server = start_server(served_model_name=["one", "two/three"])
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        models = list(client.models.list())
        assert [(model.id, model.type, model.display_name) for model in models] == [
            ("one", "model", "one"),
            ("two/three", "model", "two/three"),
        ]
        assert client.models.retrieve("one") == models[0]
        assert models[0].created_at.timestamp() > 1e9
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            client.models.retrieve("three")
    assert server.client.get("/v1/models").json()["object"] == "list"
