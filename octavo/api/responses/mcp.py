"""Which MCP servers requests may use, and which request headers are forwarded.

Only servers that the operator named are reached, at the address that the operator gave: a request's URL is compared
with it, never used. Redirects are followed within the server's own origin only.
"""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from octavo.api.errors import HttpError
from octavo.api.responses.protocol import McpTool
from octavo.config import ServerSettings
from octavo.errors import ConfigError, InvalidRequestError, OctavoError

# Headers that a request may not set: they would change the destination or the framing.
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "upgrade", "accept", "te", "trailer"}
    | {"accept-encoding", "proxy-authorization", "proxy-connection", "forwarded", "mcp-session-id", "last-event-id"}
)
FAILED_DEPENDENCY = 424


class McpError(OctavoError):
    """An MCP server did not do what was asked; the sentence is for the client and the model.

    Attributes:
        details: in the shape of the protocol's error objects.
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details or {"type": "http_error", "code": FAILED_DEPENDENCY, "message": message}


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server that requests may use; ``label`` names it where a request gives no URL."""

    url: str
    label: str | None = None


class McpServers:
    """The servers that the operator allows."""

    def __init__(self, servers: Iterable[McpServer] = ()) -> None:
        self._by_url: dict[str, McpServer] = {}
        self._by_label: dict[str, McpServer] = {}
        for server in servers:
            self._by_url[_canonical(server.url)] = server
            if server.label is not None:
                self._by_label[server.label] = server

    @classmethod
    def from_settings(cls, settings: ServerSettings) -> "McpServers":
        """Those of ``allowed_mcp_server`` and ``tool_server``."""
        entries = list(settings.allowed_mcp_server or ())
        for host in (settings.tool_server or "").split(","):
            if host.strip() == "demo":
                raise ConfigError("tool_server: there are no demo tools; name MCP servers, or use builtin_tool.")
            if host.strip():
                entries.append(host.strip() if "://" in host else f"http://{host.strip()}/sse")
        servers = [_parse_entry(entry) for entry in entries]
        if servers and importlib.util.find_spec("mcp") is None:
            raise ConfigError("MCP servers need the package mcp: pip install 'octavo[mcp]'.")
        return cls(servers)

    def find(self, tool: McpTool) -> McpServer:
        """The server that a request means."""
        if tool.connector_id is not None or tool.tunnel_id is not None:
            raise InvalidRequestError("tools: connectors and tunnels are not supported; give a server_url.", "tools")
        if not self._by_url:
            raise InvalidRequestError(
                "tools: this server allows no MCP servers; its operator can allow some with --allowed-mcp-server.",
                "tools",
            )
        if tool.server_url is None:
            server = self._by_label.get(tool.server_label)
            if server is None:
                raise InvalidRequestError(
                    f"tools: no MCP server is known here as {tool.server_label!r}; give its server_url.", "tools"
                )
            return server
        server = self._by_url.get(_canonical(tool.server_url))
        if server is None:
            raise InvalidRequestError(
                f"tools: the MCP server {tool.server_url[:200]!r} is not allowed by this server's operator.",
                "tools",
            )
        return server


def _parse_entry(entry: str) -> McpServer:
    label, equals, url = entry.partition("=")
    if not equals or "://" in label:
        label, url = "", entry
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"allowed_mcp_server is a URL or LABEL=URL, such as http://127.0.0.1:9000/mcp, got {entry!r}."
        )
    return McpServer(url, label or None)


def _canonical(url: str) -> str:
    """The normalized form of a URL, for comparison; text that is not a URL is returned unchanged."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url
    if port is None:
        port = 443 if parts.scheme.lower() == "https" else 80
    query = f"?{parts.query}" if parts.query else ""
    user = f"{parts.username}:{parts.password}@" if parts.username or parts.password else ""
    return f"{parts.scheme.lower()}://{user}{(parts.hostname or '').lower()}:{port}{parts.path.rstrip('/')}{query}"


def request_headers(tool: McpTool) -> dict[str, str]:
    """The headers that a request adds for its server."""
    headers = dict(tool.headers or {})
    if tool.authorization is not None:
        headers["Authorization"] = f"Bearer {tool.authorization}"
    for name, value in headers.items():
        is_token = name.isascii() and all(char.isalnum() or char in "!#$%&'*+-.^_`|~" for char in name)
        if not name or not is_token or not value.isascii() or not value.isprintable():
            raise InvalidRequestError(f"tools: {name[:60]!r} cannot be sent as a header.", "tools")
        if name.lower() in _OWN_HEADERS:
            raise InvalidRequestError(f"tools: the header {name[:60]!r} cannot be set.", "tools")
    return headers


def as_http_error(error: McpError) -> HttpError:
    """The error as the answer to a request that cannot continue without the server."""
    return HttpError(FAILED_DEPENDENCY, str(error), "tools")
