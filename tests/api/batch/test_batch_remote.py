"""Files behind URLs: public addresses only, whatever names and redirects say."""

import asyncio
import ipaddress
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.api.batch import remote
from octavo.api.batch.remote import download, is_public_address, parse_url, upload
from octavo.errors import ConfigError, RequestFailedError

INNER = [
    *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
    *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::"),
]


@pytest.mark.parametrize("address", INNER)
def test_inner_addresses_are_not_public(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are(address: str) -> None:
    assert is_public_address(address)


@given(st.ip_addresses(v=4))
def test_an_address_in_another_dress_is_the_same(address: ipaddress.IPv4Address) -> None:
    expected = is_public_address(str(address))
    assert is_public_address(f"::ffff:{address}") == expected
    assert is_public_address(str(ipaddress.IPv6Address((0x64FF9B << 96) | int(address)))) == expected


@pytest.mark.parametrize("url", ["http://", "https:///x", "file:///etc/passwd", "http://[::1", "ftp://a/b"])
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        parse_url(url)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, place = self.path.partition("?to=")
        if path in ("/redirect", "/loop"):
            self.send_response(302)
            self.send_header("location", self.path if path == "/loop" else place or "/file")
            self.end_headers()
            return
        self.send_response(200 if path == "/file" else 404)
        self.end_headers()
        self.wfile.write(b"line\n" * 1000)

    def do_PUT(self) -> None:
        self.server.stored = self.rfile.read(int(self.headers["content-length"]))  # type: ignore[attr-defined]
        self.server.host = self.headers["host"]  # type: ignore[attr-defined]
        self.send_response(201 if self.path == "/store" else 403)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def open_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests have no public address to ask: 127.0.0.1 is one for them, and only that."""
    monkeypatch.setattr(remote, "is_public_address", lambda text: text == "127.0.0.1" or is_public_address(text))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"])
def test_this_machine_is_not_reached(web: Any, tmp_path: Path, host: str) -> None:
    with pytest.raises((ConfigError, RequestFailedError)) as refusal:
        asyncio.run(download(f"http://{host}:{web.server_port}/file", tmp_path / "file"))
    assert "not a public address" in str(refusal.value) or "not known" in str(refusal.value)
    assert not (tmp_path / "file").exists()


@pytest.mark.usefixtures("open_to_this_machine")
def test_files_are_fetched_over_redirects(web: Any, tmp_path: Path) -> None:
    asyncio.run(download(f"http://127.0.0.1:{web.server_port}/redirect", tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"line\n" * 1000


@pytest.mark.usefixtures("open_to_this_machine")
@pytest.mark.parametrize("place", ["http://169.254.169.254/latest", "http://[::1]:1/", "file:///etc/passwd", "/loop"])
def test_redirects_are_looked_at_like_the_first_address(web: Any, tmp_path: Path, place: str) -> None:
    with pytest.raises((ConfigError, RequestFailedError), match=r"public|URL|too often"):
        asyncio.run(download(f"http://127.0.0.1:{web.server_port}/redirect?to={place}", tmp_path / "file"))


@pytest.mark.usefixtures("open_to_this_machine")
def test_failures_are_told_without_secrets(web: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = f"http://user:secret@127.0.0.1:{web.server_port}"
    with pytest.raises(RequestFailedError, match="404") as failure:
        asyncio.run(download(f"{base}/none?signature=secret", tmp_path / "file"))
    assert "secret" not in str(failure.value)
    monkeypatch.setattr(remote, "MAX_INPUT_BYTES", 4000)
    with pytest.raises(RequestFailedError, match="longer than"):
        asyncio.run(download(f"{base}/file", tmp_path / "file"))


@pytest.mark.usefixtures("open_to_this_machine")
def test_files_are_stored(web: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"answer\n" * 5000)
    asyncio.run(upload(path, f"http://127.0.0.1:{web.server_port}/store"))
    assert web.stored == path.read_bytes()
    assert web.host == f"127.0.0.1:{web.server_port}"
    with pytest.raises(RequestFailedError, match="403"):
        asyncio.run(upload(path, f"http://127.0.0.1:{web.server_port}/forbidden"))
