"""Health, version, metrics, tokens, models, documentation."""

import pytest
from fake_engine import FakeEngine
from running_server import RunningServer, StartServer

import octavo


def test_health_follows_the_engine(start_server: StartServer) -> None:
    server = start_server()
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        server.engine.is_healthy = True
        assert server.client.request(method, path).status_code == 200
        server.engine.is_healthy = False
        response = server.client.request(method, path)
        assert response.status_code == 503
        assert "engine is down" in response.json()["error"]["message"]
    server.engine.fault = "The weights are lost."
    assert server.client.get("/health").json()["error"]["message"] == "The weights are lost."


def test_version_and_metrics(server: RunningServer) -> None:
    assert server.client.get("/version").json() == {"version": octavo.__version__}
    response = server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'octavo:num_requests_running{engine="0",model_name="fake/model"} 0.0' in response.text


def test_models(start_server: StartServer) -> None:
    client = start_server(served_model_name=["org/one", "two"]).client
    models = client.get("/v1/models").json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["org/one", "two"]
    card = client.get("/v1/models/org/one").json()
    assert card["object"] == "model"
    assert card["root"] == "fake/model"
    assert card["max_model_len"] == 1 << 17
    assert client.get("/v1/models/three").status_code == 404


def test_tokenize_and_back(server: RunningServer) -> None:
    answer = server.client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert answer["count"] == 3
    assert answer["max_model_len"] == 1 << 17
    assert len(answer["token_strs"]) == 3
    assert server.client.post("/tokenize", json={"prompt": "hé"}).json()["token_strs"] is None
    text = server.client.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert text == {"prompt": "hé"}
    answer = server.client.post("/tokenize", json={"prompt": "hé" * 1000, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["token_strs"]) == 3000


def test_tokenize_a_conversation(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    tokens = server.client.post("/tokenize", json=body).json()["tokens"]
    text = server.client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == "user: hi\ntools: 1\nassistant: "


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_tokens_without_a_tokenizer(start_server: StartServer, path: str) -> None:
    engine = FakeEngine()
    engine.tokenizer = None
    response = start_server(engine).client.post(path, json={"prompt": "x", "tokens": [1]})
    assert response.status_code == 400
    assert "without a tokenizer" in response.json()["error"]["message"]


def test_documentation_lists_every_route(start_server: StartServer) -> None:
    server = start_server()
    assert server.client.get("/docs").status_code == 200
    paths = set(server.client.get("/openapi.json").json()["paths"])
    assert paths >= {
        *("/v1/models", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"),
        *("/health", "/ping", "/version", "/metrics"),
    }
    hidden = start_server(disable_fastapi_docs=True)
    assert hidden.client.get("/docs").status_code == 404
    assert hidden.client.get("/openapi.json").status_code == 404


def test_a_prefix_that_a_proxy_strips(start_server: StartServer) -> None:
    client = start_server(root_path="/llm").client
    assert client.get("/v1/models").status_code == 200
    assert client.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]
