"""Routes for the owner: there when switched on, behind the key, and each tells the engine the right thing."""

from typing import Any

import msgspec
import pytest
from fake_engine import REPLY, FakeEngine
from running_server import RunningServer, StartServer

from octavo.api.admin.invocations import target_of
from octavo.api.app import build_app
from octavo.config import EngineConfig, ServerSettings
from octavo.engine.remote_control import RemoteControl
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.records import EngineStats, PoolingSpec
from octavo.telemetry.metrics import Metrics

ADMIN_ROUTES = [
    *(("POST", path) for path in ("/pause", "/resume", "/sleep", "/wake_up", "/release_kv_cache_memory")),
    *(("POST", path) for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")),
    *(("POST", path) for path in ("/start_profile", "/stop_profile", "/abort_requests", "/weight_checker")),
    *(("POST", path) for path in ("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine")),
    *(("POST", path) for path in ("/start_weight_update", "/update_weights", "/finish_weight_update")),
    ("POST", "/update_weight_version"),
    *(("GET", path) for path in ("/is_paused", "/is_sleeping", "/weight_info", "/get_world_size", "/server_info")),
]


class ControlledEngine(FakeEngine, RemoteControl):
    """Notes what it is told, and answers what it was given."""

    metrics: Metrics = None  # type: ignore[assignment]
    stats = EngineStats(is_paused=True, sleep_level=1)

    def __init__(self) -> None:
        super().__init__()
        self.settings = EngineConfig.from_kwargs(model="org/model", hf_token="hf_secret")
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.answer: Any = True

    async def call_engine(self, name: str, **arguments: Any) -> Any:
        self.told.append((name, arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class PoolingControlledEngine(ControlledEngine):
    """The same around a pooling model."""

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(
            self.info, pooling=PoolingSpec(["embed"], "CLS", is_encoder=True, hidden_size=8)
        )


def test_routes_of_reinforcement_learning_are_for_models_that_write_text(start_server: StartServer) -> None:
    client = start_server(PoolingControlledEngine(), enable_admin_endpoints=True).client
    for path in ("/is_paused", "/weight_info", "/get_world_size"):
        assert client.get(path).status_code == 404, path
    for path in ("/health", "/version", "/load", "/server_info", "/is_sleeping", "/v1/models"):
        assert client.get(path).status_code == 200, path


@pytest.fixture
def admin(start_server: StartServer) -> RunningServer:
    return start_server(ControlledEngine(), enable_admin_endpoints=True)


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_no_such_routes_unless_switched_on(server: RunningServer, method: str, path: str) -> None:
    assert server.client.request(method, path).status_code in (404, 405)


def test_the_key_guards_them_all(start_server: StartServer) -> None:
    server = start_server(ControlledEngine(), enable_admin_endpoints=True, api_key=["secret"])
    for method, path in [*ADMIN_ROUTES, ("GET", "/load"), ("POST", "/invocations")]:
        assert server.client.request(method, path).status_code == 401, path
    assert server.engine.told == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/pause", None, ("pause", {"mode": "abort", "clear_cache": True})),
        ("/pause?mode=wait&clear_cache=false", None, ("pause", {"mode": "wait", "clear_cache": False})),
        ("/resume", None, ("resume", {})),
        ("/sleep", None, ("sleep", {"level": 1, "mode": "abort"})),
        ("/sleep?level=2&mode=keep", None, ("sleep", {"level": 2, "mode": "keep"})),
        ("/wake_up", None, ("wake_up", {"tags": None})),
        ("/wake_up?tags=weights&tags=kv_cache", None, ("wake_up", {"tags": ["weights", "kv_cache"]})),
        (
            "/reset_prefix_cache?reset_running_requests=true",
            None,
            ("reset_prefix_cache", {"reset_running_requests": True}),
        ),
        ("/start_profile", None, ("start_profile", {})),
        ("/stop_profile", None, ("stop_profile", {})),
        ("/start_weight_update", None, ("start_weight_update", {})),
        ("/update_weights", {"update_info": {"path": "step 5"}}, ("update_weights", {"path": "step 5"})),
        ("/update_weights", {}, ("update_weights", {"path": None})),
        ("/finish_weight_update", {"weight_version": "5"}, ("finish_weight_update", {"weight_version": "5"})),
        ("/update_weight_version", {"new_version": "6"}, ("set_weight_version", {"version": "6"})),
    ],
)
def test_what_the_engine_is_told(admin: RunningServer, path: str, body: Any, told: tuple[str, dict[str, Any]]) -> None:
    response = admin.client.post(path, json=body) if body is not None else admin.client.post(path)
    assert response.status_code == 200, response.text
    assert admin.engine.told == [told]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause?mode=later", None),
        ("/sleep?level=3", None),
        ("/sleep?level=-1", None),
        ("/wake_up?" + "&".join(["tags=a"] * 9), None),
        ("/abort_requests", {}),
        ("/abort_requests", {"request_ids": "all"}),
        ("/abort_requests", {"request_ids": ["x" * 600]}),
        ("/update_weights", {"update_info": {"names": ["w"], "pickled": "gASV"}}),
        ("/update_weights", {"update_info": {"path": "x" * 5000}}),
        ("/init_weight_transfer_engine", {"init_info": {"backend": "nccl"}}),
        ("/weight_checker", {"action": "reset"}),
        ("/weight_checker", {"action": "explode"}),
    ],
)
def test_what_makes_no_sense_reaches_no_engine(admin: RunningServer, path: str, body: Any) -> None:
    response = admin.client.post(path, json=body) if body is not None else admin.client.post(path)
    assert response.status_code == 400
    assert response.json()["error"]["message"].endswith(".")
    assert admin.engine.told == []  # type: ignore[attr-defined]


def test_what_the_engine_answers(admin: RunningServer) -> None:
    engine, client = admin.engine, admin.client
    assert isinstance(engine, ControlledEngine)
    assert client.get("/is_paused").json() == {"is_paused": True}
    assert client.get("/is_sleeping").json() == {"is_sleeping": True}
    assert client.get("/get_world_size").json() == {"world_size": 1}
    engine.answer = ["cmpl-1"]
    answer = client.post("/abort_requests", json={"request_ids": ["cmpl-1", "cmpl-2"]})
    assert answer.json() == {"status": "aborted", "aborted": ["cmpl-1"]}
    engine.answer = {"a": "01", "b": "02"}
    assert client.post("/weight_checker", json={"action": "checksum"}).json()["checksums"] == engine.answer
    compared = client.post("/weight_checker", json={"action": "compare", "baseline": {"a": "01", "c": "03"}})
    assert compared.json() == {"match": False, "mismatches": ["b", "c"]}
    engine.answer = InvalidRequestError("The engine sleeps.")
    assert client.post("/resume").status_code == 400
    engine.answer = EngineDeadError("The engine is gone.")
    refused = client.post("/sleep")
    assert refused.status_code == 503 and "retry-after" in refused.headers
    metrics = client.get("/metrics").text
    assert "octavo:sleep_mode_operation_duration_seconds_count 1.0" in metrics
    assert "octavo:sleep_mode_operations_in_flight 0.0" in metrics


def test_settings_are_told_without_secrets(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "env_secret")
    monkeypatch.setenv("OCTAVO_SOMETHING", "plain")
    client = start_server(ControlledEngine(), enable_admin_endpoints=True, api_key=["flag_secret"]).client
    headers = {"authorization": "Bearer flag_secret"}
    for config_format in ("text", "json"):
        answer = client.get(f"/server_info?config_format={config_format}", headers=headers)
        assert "secret" not in answer.text.replace("(hidden)", "")
        assert "org/model" in answer.text and "plain" in answer.text
    assert answer.json()["vllm_config"]["scheduler"]["scheduling_policy"] == "fcfs"


def test_an_engine_without_control_is_refused(start_server: StartServer) -> None:
    with pytest.raises(ValueError, match="cannot be controlled"):
        start_server(FakeEngine(), enable_admin_endpoints=True)


def test_load_counts_what_is_being_answered(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.5))
    assert server.client.get("/load").json() == {"server_load": 0}
    with server.client.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}) as response:
        lines = response.iter_lines()  # whose end would be the end of the connection
        next(lines)
        assert server.client.get("/load").json() == {"server_load": 1}


def test_sources_of_cache_events_are_told(start_server: StartServer) -> None:
    engine = FakeEngine()
    server = start_server(engine)
    assert server.client.get("/kv_event_sources").json() == {}
    engine.info.kv_event_source = {"endpoint": "tcp://*:5557", "topic": ""}
    assert server.client.get("/kv_event_sources").json() == {"0": {"endpoint": "tcp://*:5557", "topic": ""}}


def test_the_tokenizer_is_described_if_allowed(start_server: StartServer, server: RunningServer) -> None:
    assert server.client.get("/tokenizer_info").status_code == 404
    info = start_server(enable_tokenizer_info_endpoint=True).client.get("/tokenizer_info").json()
    assert info["tokenizer_class"] and info["eos_token"] == "<|end|>"
    assert "messages" in info["chat_template"]


def test_one_route_for_everything(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat = server.client.post("/invocations", json={"messages": messages})
    assert chat.json()["choices"][0]["message"]["content"] == REPLY
    assert server.client.post("/invocations", json={"prompt": "hi"}).json()["object"] == "text_completion"
    with server.client.stream("POST", "/invocations", json={"messages": messages, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and len(lines) > 5
    wrong = server.client.post("/invocations", json={"prompt": "hi", "max_tokens": "many"})
    assert wrong.status_code == 400 and "max_tokens" in wrong.text
    for body in ({}, [], {"input": "hi"}, {"query": "a", "documents": ["b"]}, "messages"):
        refused = server.client.post("/invocations", json=body)
        assert refused.status_code == 400, body
        assert "fits no route" in refused.text
    assert server.client.post("/invocations", content=b"x" * (5 << 20)).status_code in (413, 415)


@pytest.mark.parametrize(
    ("body", "task", "path"),
    [
        ({"messages": []}, None, "/v1/chat/completions"),
        ({"prompt": "a"}, None, "/v1/completions"),
        ({"input": "a"}, "embed", "/v1/embeddings"),
        ({"messages": []}, "embed", "/v1/embeddings"),
        ({"input": "a"}, "classify", "/classify"),
        ({"input": "a"}, "token_embed", "/pooling"),
        ({"query": "a", "documents": []}, "classify", "/rerank"),
        ({"text_1": "a", "text_2": "b"}, "embed", "/score"),
        ({"queries": "a", "documents": "b"}, "embed", "/score"),
    ],
)
def test_which_route_a_body_is_for(body: dict[str, Any], task: str | None, path: str) -> None:
    assert target_of(body, task) == path
    assert path in build_app(FakeEngine(), ServerSettings()).openapi()["paths"]


def test_one_route_behind_a_prefix(start_server: StartServer) -> None:
    client = start_server(root_path="/llm").client
    assert client.post("/invocations", json={"prompt": "hi"}).json()["object"] == "text_completion"
