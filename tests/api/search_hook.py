"""A hook for a built-in tool, as an owner of a server would write it."""

from collections.abc import Mapping
from typing import Any

from octavo.api.responses.hooks import BuiltinResult
from octavo.errors import InvalidRequestError, RequestFailedError


class Search:
    """Finds always the same."""

    name = "search"
    description = "Search the web."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}}

    async def call(self, arguments: dict[str, Any]) -> BuiltinResult:
        match arguments.get("query"):
            case "bug":
                raise KeyError("secret detail")
            case "down":
                raise RequestFailedError("The index is down.")
            case query:
                return BuiltinResult(f"Found {query}.", {"action": {"type": "search", "query": query}})


def make_search(tool: Mapping[str, Any]) -> Search:
    """The hook."""
    if tool.get("search_context_size") == "huge":
        raise InvalidRequestError("tools: search_context_size is low or high.", "tools")
    if tool.get("search_context_size") == "bug":
        raise KeyError("secret detail")
    return Search()
