"""A session with an MCP server. Imports the package ``mcp``, an extra: import this where a server is reached."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from octavo.api.responses.items import McpToolInfo
from octavo.api.responses.mcp import McpError, McpServer

logger = logging.getLogger(__name__)
T = TypeVar("T")

CONNECT_SECONDS = 20.0
CALL_SECONDS = 120.0
CLOSE_SECONDS = 5.0
MAX_ANSWER_BYTES = 16 << 20
MAX_TOOLS_OF_SERVER = 1024
MAX_PAGES = 64
MAX_OUTPUT_CHARACTERS = 1 << 19


class McpConnection:
    """One server's session during one request. It lives in a task of its own: if it breaks, only its calls fail."""

    def __init__(self, server: McpServer, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = dict(headers)
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None

    async def list_tools(self) -> list[McpToolInfo]:
        """What the server can do.

        Raises:
            McpError: it could not be reached, or broke off.
        """
        client = await self._connected()
        tools: list[McpToolInfo] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._guarded(client.list_tools(cursor=cursor), CONNECT_SECONDS)
            for tool in page.tools:
                notes = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
                tools.append(McpToolInfo(tool.name, tool.input_schema, tool.description, notes))
            cursor = page.next_cursor
            if cursor is None or len(tools) > MAX_TOOLS_OF_SERVER:
                break
        return tools[:MAX_TOOLS_OF_SERVER]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool; its answer as text.

        Raises:
            McpError: the call failed; the tool's message is in the details.
        """
        client = await self._connected()
        result = await self._guarded(client.call_tool(name, arguments), CALL_SECONDS)
        text = _text_of(result)
        if result.is_error:
            content = [{"type": "text", "text": text}]
            raise McpError(text or "The tool failed.", {"type": "mcp_tool_execution_error", "content": content})
        return text

    async def close(self) -> None:
        """End the session."""
        if self._task is None:
            return
        self._closing.set()
        _, pending = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        if pending:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)

    async def _connected(self) -> Client:
        if self._client is None:
            opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(opened))
            self._client = await self._guarded(asyncio.wait_for(opened, None), CONNECT_SECONDS)
        return self._client

    async def _live(self, opened: asyncio.Future[Client]) -> None:
        def http_client(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            # The environment's proxies are not for addresses that the operator named.
            return httpx2.AsyncClient(
                headers=self._headers,
                timeout=timeout or CALL_SECONDS,
                auth=auth,
                transport=LimitedTransport(),
                trust_env=False,
                follow_redirects=False,
            )

        try:
            async with AsyncExitStack() as stack:
                if urlsplit(self._server.url).path.endswith("/sse"):
                    transport = sse_client(self._server.url, self._headers, httpx_client_factory=http_client)
                else:
                    http = await stack.enter_async_context(http_client())
                    transport = streamable_http_client(self._server.url, http_client=http)
                client = await stack.enter_async_context(Client(transport, cache=None))
                opened.set_result(client)
                await self._closing.wait()
        except Exception as error:
            logger.info("The MCP server %s failed: %s", self._server.url, _first_cause(error))
            if not opened.done():
                opened.set_exception(McpError("The MCP server cannot be reached."))
                opened.exception()  # mark it as retrieved, even if no caller waits any more
        finally:
            opened.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await ``work``, but no longer than the session lives."""
        assert self._task is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._task), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self._task.done():
                await asyncio.wait((task,), timeout=0.1)  # a refusal may be on its way
            if not task.done():
                what = "closed the connection" if self._task.done() else f"did not answer within {seconds:g} seconds"
                raise McpError(f"The MCP server {what}.")
            return task.result()
        except McpError:
            raise
        except asyncio.CancelledError:
            if task.cancelled() and self._task.done():
                raise McpError("The MCP server closed the connection.") from None
            raise
        except Exception as error:
            raise _as_mcp_error(error) from error
        finally:
            task.cancel()


class LimitedTransport(httpx2.AsyncBaseTransport):
    """HTTP whose answers end with an error where they would fill the memory."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _LimitedStream(response.stream)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._inner:
            num_bytes += len(chunk)
            if num_bytes > MAX_ANSWER_BYTES:
                raise McpError(f"The MCP server's answer is longer than {MAX_ANSWER_BYTES} bytes.")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _as_mcp_error(error: Exception) -> McpError:
    cause = _first_cause(error)
    if isinstance(cause, McpError):
        return cause
    if isinstance(cause, MCPError):
        message = f"The MCP server refused: {str(cause)[:500]}"
        code = cause.error.code
        return McpError(message, {"type": "mcp_protocol_error", "code": code, "message": message})
    logger.info("An MCP server failed: %r", cause)
    return McpError("The MCP server's answer cannot be read.")


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text_of(result: CallToolResult) -> str:
    texts: list[str] = []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            texts.append(block.resource.text)
        else:
            texts.append(f"[{block.type}, which cannot be shown here]")
    text = "\n".join(texts)
    if len(text) > MAX_OUTPUT_CHARACTERS:
        text = text[:MAX_OUTPUT_CHARACTERS] + "\n[cut: the tool's answer is longer]"
    return text
