"""Batch files at URLs. Only public addresses are contacted, whatever names resolve to and redirects say."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from octavo.errors import ConfigError, RequestFailedError

MAX_INPUT_BYTES = 4 << 30
_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 20
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_url(name: str) -> bool:
    """Whether a file's name is a web address."""
    return name.lower().startswith(("http://", "https://"))


def is_public_address(text: str) -> bool:
    """Whether an IP address belongs to a machine that anybody may reach: not this one, nor one of a private network."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(str(inner))
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast


async def download(url: str, path: Path) -> None:
    """Fetch a file.

    Raises:
        RequestFailedError: it cannot be fetched, or is too long.
    """
    location = httpx.URL(url)
    for _ in range(_MAX_REDIRECTS + 1):
        async with _ask("GET", location) as response:
            if response.is_redirect:
                location = location.join(response.headers.get("location", ""))
                continue
            _check_status(response, location)
            await _save(response, path, location)
            return
    raise RequestFailedError(f"{describe(location)} redirects too often.")


async def upload(path: Path, url: str) -> None:
    """Store a file by PUT.

    Raises:
        RequestFailedError: it cannot be stored.
    """
    location = httpx.URL(url)
    headers = {"content-length": str(_size(path)), "content-type": "application/jsonl"}
    async with _ask("PUT", location, headers, path) as response:
        _check_status(response, location)


def describe(url: httpx.URL) -> str:
    """An address for people: without what may be secret in it."""
    return f"{url.scheme}://{url.host}{url.path}"


def parse_url(text: str) -> httpx.URL:
    """A web address."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"The URL is invalid: {error}.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError("A URL must begin with https:// or http:// and name a host.")
    return url


@asynccontextmanager
async def _ask(
    method: str, url: httpx.URL, headers: dict[str, str] | None = None, body: Path | None = None
) -> AsyncIterator[httpx.Response]:
    url = parse_url(str(url))
    # The connection goes to the address that was looked at: a second lookup could return another one.
    address = await _resolve(url)
    host = url.netloc.decode("ascii")
    request_headers = {**(headers or {}), "host": host}
    # Proxies of the environment would resolve the name themselves.
    async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, follow_redirects=False) as client:
        try:
            async with client.stream(
                method,
                url.copy_with(host=address),
                headers=request_headers,
                content=None if body is None else _chunks(body),
                extensions={"sni_hostname": url.host},
            ) as response:
                yield response
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise RequestFailedError(f"{describe(url)} cannot be reached: {reason}.") from None


async def _resolve(url: httpx.URL) -> str:
    """An address of the URL's host, all of which must be public."""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestFailedError(f"The host {url.host!r} is not known: {error}.") from None
    addresses = [str(sockaddr[0]) for *_, sockaddr in found]
    for address in addresses:
        if not is_public_address(address):
            raise ConfigError(f"{describe(url)} resolves to {address}, which is not a public address.")
    return addresses[0]


def _check_status(response: httpx.Response, url: httpx.URL) -> None:
    if not response.is_success:
        raise RequestFailedError(f"{describe(url)} answered with status {response.status_code}.")


async def _save(response: httpx.Response, path: Path, url: httpx.URL) -> None:
    num_bytes = 0
    with path.open("wb") as file:
        async for chunk in response.aiter_bytes(_CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > MAX_INPUT_BYTES:
                raise RequestFailedError(f"{describe(url)} is longer than {MAX_INPUT_BYTES >> 30} GiB.")
            await asyncio.to_thread(file.write, chunk)


def _size(path: Path) -> int:
    return path.stat().st_size


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
