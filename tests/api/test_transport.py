"""TLS, plug-ins and the other things around the routes."""

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from running_server import PATIENCE, StartServer

from octavo.api.server import describe_address, make_server
from octavo.config import ServerSettings
from octavo.errors import ConfigError


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ca.pem``, and ``server`` and ``client`` signed by it, each with a ``.key``."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program; ran on Debian, which has it")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return folder


def get_models(url: str, context: ssl.SSLContext) -> int:
    with httpx.Client(verify=context, timeout=PATIENCE) as client:
        return client.get(f"{url}/v1/models").status_code


def test_tls(start_server: StartServer, certificates: Path) -> None:
    server = start_server(ssl_keyfile=f"{certificates}/server.key", ssl_certfile=f"{certificates}/server.pem")
    assert server.url.startswith("https://")
    assert get_models(server.url, ssl.create_default_context(cafile=f"{certificates}/ca.pem")) == 200
    with pytest.raises(httpx.ConnectError):
        get_models(server.url, ssl.create_default_context())


def test_certificates_of_clients(start_server: StartServer, certificates: Path) -> None:
    server = start_server(
        ssl_keyfile=f"{certificates}/server.key",
        ssl_certfile=f"{certificates}/server.pem",
        ssl_ca_certs=f"{certificates}/ca.pem",
        ssl_cert_reqs=2,
        ssl_ciphers="ECDHE+AESGCM",
    )
    context = ssl.create_default_context(cafile=f"{certificates}/ca.pem")
    with pytest.raises(httpx.TransportError):
        get_models(server.url, context)
    context.load_cert_chain(f"{certificates}/client.pem", f"{certificates}/client.key")
    assert get_models(server.url, context) == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl_certfile": "/no/such.pem"}, "ssl_certfile: there is no file"),
        ({"ssl_keyfile": __file__}, "set ssl_certfile"),
        ({"ssl_cert_reqs": 2}, "set ssl_certfile"),
        ({"ssl_certfile": __file__, "ssl_cert_reqs": 7}, "0, 1 or 2"),
        ({"ssl_certfile": __file__, "ssl_cert_reqs": 1}, "without ssl_ca_certs"),
        ({"middleware": ["no.such.Thing"]}, "cannot be imported"),
        ({"middleware": ["os.path:nothing"]}, "cannot be imported"),
        ({"middleware": ["json"]}, "cannot be imported"),
        ({"middleware": ["os.path.join"]}, "neither a class nor an async function"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_server(FakeEngine(), ServerSettings(**settings))  # type: ignore[arg-type]


class Shouting:
    """ASGI middleware: bodies leave in capitals."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        async def shout(message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = message["body"].upper()
            await send(message)

        await self.app(scope, receive, shout)


async def stamp(request, call_next):
    """Middleware as a function: adds a header."""
    response = await call_next(request)
    response.headers["x-stamp"] = request.url.path
    return response


def test_plug_ins_see_all_requests_and_all_bodies(start_server: StartServer) -> None:
    server = start_server(middleware=["test_transport.Shouting", "test_transport:stamp"], api_key=["k"])
    refused = server.client.get("/v1/models")
    assert refused.status_code == 401 and refused.headers["x-stamp"] == "/v1/models"
    headers = {"authorization": "Bearer k"}
    answer = server.client.post("/v1/completions", json={"prompt": "hi", "stream": True}, headers=headers)
    assert answer.headers["x-stamp"] == "/v1/completions"
    assert "DATA: [DONE]" in answer.text and "data:" not in answer.text


def test_other_origins_may_do_what_they_are_allowed(start_server: StartServer) -> None:
    client = start_server(
        allowed_origins=["https://a.example"],
        allowed_methods=["GET"],
        allowed_headers=["x-one"],
        allow_credentials=True,
    ).client

    def preflight(method: str, wanted: str) -> httpx.Response:
        headers = {"origin": "https://a.example", "access-control-request-method": method}
        return client.options("/v1/models", headers=headers | {"access-control-request-headers": wanted})

    allowed = preflight("GET", "x-one")
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-credentials"] == "true"
    assert preflight("POST", "x-one").status_code == 400
    assert preflight("GET", "x-two").status_code == 400


def test_every_name_is_served_and_the_first_is_the_default(start_server: StartServer) -> None:
    client = start_server(served_model_name=["one", "two"]).client
    for name in ("one", "two"):
        assert client.post("/v1/completions", json={"model": name, "prompt": "hi"}).json()["model"] == name
    assert client.post("/v1/completions", json={"prompt": "hi"}).json()["model"] == "one"
    assert client.post("/v1/completions", json={"model": "three", "prompt": "hi"}).status_code == 404


def test_a_unix_socket_is_named(tmp_path: Path) -> None:
    from octavo.api.server import bind_sockets

    settings = ServerSettings(uds=str(tmp_path / "socket"))
    (listener,) = bind_sockets(settings)
    assert describe_address(listener, settings) == f"unix:{tmp_path}/socket"
    listener.close()


def test_a_unix_socket_takes_the_place_of_nothing_but_another(tmp_path: Path) -> None:
    from octavo.api.server import bind_sockets

    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"):
        bind_sockets(ServerSettings(uds=str(path)))
    assert path.read_text() == "precious"
    settings = ServerSettings(uds=str(tmp_path / "socket"))
    for _ in range(2):  # the first leaves its name behind
        (listener,) = bind_sockets(settings)
        listener.close()
