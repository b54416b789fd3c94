"""The tools of one request: client functions, MCP tools and built-in tools."""

import asyncio
import importlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.api.chat.conversation import ToolChoice
from octavo.api.chat.tools import parse_function
from octavo.api.responses.hooks import BuiltinTool, Hook, base_type
from octavo.api.responses.items import Item, McpToolInfo, qualified_name, short, validate_item
from octavo.api.responses.mcp import McpError, McpServer, McpServers, request_headers
from octavo.api.responses.messages import VisibleName
from octavo.api.responses.output import CallKind
from octavo.api.responses.protocol import (
    MAX_TOOLS,
    CustomTool,
    FunctionTool,
    McpTool,
    NamespaceTool,
    ToolChoiceObject,
    ToolFilter,
)
from octavo.errors import InvalidRequestError, OctavoError
from octavo.outputs.parsers.base import Tool

if TYPE_CHECKING:  # takes a second to import, and most servers reach no MCP server
    from octavo.api.responses.mcp_connection import McpConnection

logger = logging.getLogger(__name__)

BUILTIN_SECONDS = 120.0
MAX_MCP_SERVERS = 64
_TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
# What says nothing new of an MCP tool, or is a secret between the client and the server, is not shown again.
_NOT_SHOWN = frozenset({"headers", "authorization"})


@dataclass(slots=True)
class McpSource:
    """An MCP server of the request.

    Attributes:
        requested: as the request has it.
        connection: None until something is asked of the server.
        tools: those that may be called, by their own names; filled when they are known.
    """

    requested: McpTool
    server: McpServer
    headers: Mapping[str, str]
    connection: "McpConnection | None" = None
    tools: dict[str, McpToolInfo] = field(default_factory=dict)
    is_listed: bool = False

    async def connect(self) -> "McpConnection":
        """The session, opened if it is not."""
        if self.connection is None:
            # The first import of the package takes a second; a thread keeps the event loop free.
            module = await asyncio.to_thread(importlib.import_module, "octavo.api.responses.mcp_connection")
            if self.connection is None:
                self.connection = module.McpConnection(self.server, self.headers)
        assert self.connection is not None
        return self.connection

    def set_tools(self, listed: Iterable[McpToolInfo]) -> None:
        """What the server has, of which the request may narrow the choice."""
        self.is_listed = True
        self.tools = {tool.name: tool for tool in listed if self._is_allowed(tool)}

    def needs_approval(self, name: str) -> bool:
        """Whether the client is asked before a tool is called; it is unless the request says otherwise."""
        approval = self.requested.require_approval
        if approval is None or isinstance(approval, str):
            return approval != "never"
        if approval.always is not None and self._is_in(approval.always, name):
            return True
        return approval.never is None or not self._is_in(approval.never, name)

    def _is_allowed(self, tool: McpToolInfo) -> bool:
        allowed = self.requested.allowed_tools
        if allowed is None:
            return True
        if isinstance(allowed, list):
            return tool.name in allowed
        return _passes(allowed, tool)

    def _is_in(self, chosen: ToolFilter, name: str) -> bool:
        return name in self.tools and _passes(chosen, self.tools[name])


def _passes(chosen: ToolFilter, tool: McpToolInfo) -> bool:
    if chosen.tool_names is not None and tool.name not in chosen.tool_names:
        return False
    if chosen.read_only is None:
        return True
    only_reads = isinstance(tool.annotations, dict) and tool.annotations.get("readOnlyHint") is True
    return only_reads == chosen.read_only


ServerTool = tuple[McpSource, McpToolInfo] | tuple[str, BuiltinTool]


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call that the server carried out.

    Attributes:
        error: one of the protocol's error objects.
    """

    text: str | None
    error: dict[str, Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Toolset:
    """What the model may call, and who carries it out.

    Attributes:
        functions: the client's, custom tools and those of namespaces among them.
        own: who carries out custom and namespaced tools, by the names that the model sees.
        builtins: by the type of their output items.
        public_tools: the tools as the response shows them.
    """

    functions: list[Tool] = field(default_factory=list)
    own: dict[str, CallKind] = field(default_factory=dict)
    sources: list[McpSource] = field(default_factory=list)
    builtins: dict[str, BuiltinTool] = field(default_factory=dict)
    choice: str | ToolChoiceObject = "auto"
    public_tools: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def parse(
        cls,
        tools: Sequence[Mapping[str, Any]],
        choice: str | ToolChoiceObject | None,
        servers: McpServers,
        hooks: Mapping[str, Hook],
    ) -> "Toolset":
        """The tools of a request."""
        toolset = cls(choice=choice or "auto")
        for index, tool in enumerate(tools):
            toolset._add(f"tools[{index}]", tool, servers, hooks)
        names = [tool.name for tool in toolset.functions] + [tool.name for tool in toolset.builtins.values()]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise InvalidRequestError(f"tools: {short(twice)} appears twice.", "tools")
        labels = [source.requested.server_label for source in toolset.sources]
        if len(set(labels)) < len(labels):
            raise InvalidRequestError("tools: each MCP server needs a server_label of its own.", "tools")
        toolset._check_choice()
        return toolset

    def _add(self, where: str, tool: Mapping[str, Any], servers: McpServers, hooks: Mapping[str, Hook]) -> None:
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise InvalidRequestError(f"{where} has no type, such as 'function'.", "tools")
        if kind in ("function", "custom"):
            self.public_tools.append(self._add_own(where, tool))
        elif kind == "namespace":
            self.public_tools.append(self._add_namespace(where, tool))
        elif kind == "mcp":
            if len(self.sources) == MAX_MCP_SERVERS:
                raise InvalidRequestError(f"tools: at most {MAX_MCP_SERVERS} may be MCP servers.", "tools")
            requested = validate_item(where, McpTool, tool, "tools")
            self.sources.append(McpSource(requested, servers.find(requested), request_headers(requested)))
            self.public_tools.append(requested.model_dump(exclude=set(_NOT_SHOWN), exclude_none=True))
        elif base_type(kind) in hooks:
            try:
                self.builtins[f"{base_type(kind)}_call"] = hooks[base_type(kind)](tool)
            except OctavoError:
                raise
            except Exception as error:
                logger.exception("The hook for tools of type %s failed", kind)
                raise InvalidRequestError(f"{where}: this tool cannot be set up.", "tools") from error
            self.public_tools.append(dict(tool))
        else:
            raise InvalidRequestError(
                f"{where}: this server has no tool of type {short(kind)}; there are 'function', 'custom', 'namespace', "
                "'mcp' and the built-in tools that the server's operator adds with --builtin-tool.",
                "tools",
            )

    def _add_own(self, where: str, tool: Mapping[str, Any], space: NamespaceTool | None = None) -> dict[str, Any]:
        """Add a tool of the client's; returns it as the response shows it."""
        is_custom = tool["type"] == "custom"
        requested = validate_item(where, CustomTool if is_custom else FunctionTool, tool, "tools")
        if is_custom and requested.format is not None and requested.format.type != "text":
            raise InvalidRequestError(f"{where}.format: the input of custom tools is text without a grammar.", "tools")
        function = parse_function(where, {**tool, "parameters": _TEXT_INPUT} if is_custom else tool)
        if space is not None:
            description = "\n".join(filter(None, (space.description, function.description))) or None
            name = qualified_name(space.name, requested.name)
            function = replace(function, name=name, description=description)
        self.functions.append(function)
        if is_custom or space is not None:
            kind = CallKind("custom" if is_custom else "function", requested.name)
            self.own[function.name] = kind if space is None else replace(kind, namespace=space.name)
        return dict(requested.model_dump(exclude_none=is_custom))

    def _add_namespace(self, where: str, tool: Mapping[str, Any]) -> dict[str, Any]:
        space = validate_item(where, NamespaceTool, tool, "tools")
        tools: list[dict[str, Any]] = []
        for place, inner in enumerate(space.tools):
            spot = f"{where}.tools[{place}]"
            if inner.get("type") not in ("function", "custom"):
                raise InvalidRequestError(f"{spot} must be of the type 'function' or 'custom'.", "tools")
            tools.append(self._add_own(spot, inner, space))
            if len(self.functions) > MAX_TOOLS:
                raise InvalidRequestError(f"tools: there are more than {MAX_TOOLS} in all.", "tools")
        return {**space.model_dump(exclude_none=True), "tools": tools}

    def _check_choice(self) -> None:
        choice = self.choice
        if isinstance(choice, str):
            if choice == "required" and not (self.functions or self.sources or self.builtins):
                raise InvalidRequestError("tool_choice: there are no tools to choose from.", "tool_choice")
            return
        labels = {source.requested.server_label for source in self.sources}
        match choice.type:
            case "function" | "custom" if choice.name not in self._names_of(choice.type):
                raise InvalidRequestError(
                    f"tool_choice names {short(choice.name)}, which is not among the tools.", "tool_choice"
                )
            case "mcp" if choice.server_label not in labels:
                raise InvalidRequestError(
                    f"tool_choice names the MCP server {short(choice.server_label)}, which is not among the tools.",
                    "tool_choice",
                )
            case "function" | "custom" | "mcp" | "allowed_tools":
                pass
            case kind if f"{base_type(kind)}_call" not in self.builtins:
                raise InvalidRequestError(
                    f"tool_choice is of type {short(kind)}, but there is no such tool.", "tool_choice"
                )

    def _names_of(self, kind: str) -> set[str]:
        return {tool.name for tool in self.functions if self._kind(tool.name, None).kind == kind}

    def unlisted(self) -> list[McpSource]:
        """MCP servers whose tools are not known yet."""
        return [source for source in self.sources if not source.is_listed]

    def learn(self, items: Iterable[Item]) -> None:
        """Take the lists of tools that a conversation already holds."""
        lists = {item["server_label"]: item for item in items if item["type"] == "mcp_list_tools"}
        for source in self.unlisted():
            item = lists.get(source.requested.server_label)
            if item is not None and not item.get("error"):
                source.set_tools(
                    McpToolInfo(tool["name"], tool["input_schema"], tool.get("description"), tool.get("annotations"))
                    for tool in item["tools"]
                )

    def server_tools(self) -> dict[str, ServerTool]:
        """What the server carries out, by the name that the model sees: a tool's own, unless another has it."""
        own_names = {tool.name for tool in self.functions}
        found: dict[str, ServerTool] = {}
        for item_type, builtin in self.builtins.items():
            found[builtin.name] = (item_type, builtin)
        for source in self.sources:
            for tool in source.tools.values():
                name = tool.name
                if name in found or name in own_names:
                    name = f"{source.requested.server_label}__{name}"
                found[name] = (source, tool)
        return found

    def visible_names(self) -> VisibleName:
        """What the model calls an MCP server's tool, by the server's label and the tool's name."""
        names = {
            (source.requested.server_label, tool.name): name
            for name, (source, tool) in self.server_tools().items()
            if isinstance(source, McpSource)
        }
        return lambda label, name: names.get((label, name), name)

    def classify(self, name: str) -> CallKind:
        """Who carries out a call of this name; unknown names belong to the client."""
        return self._kind(name, self.server_tools().get(name))

    def _kind(self, name: str, found: ServerTool | None) -> CallKind:
        if found is None:
            return self.own.get(name) or CallKind("function", name)
        source, tool = found
        if isinstance(source, McpSource):
            kind = "approval" if source.needs_approval(tool.name) else "mcp"
            return CallKind("approval" if kind == "approval" else "mcp", tool.name, source.requested.server_label)
        return CallKind("builtin", tool.name, item_type=source)

    def offered(self, *, is_first: bool, has_budget: bool) -> tuple[list[Tool], ToolChoice, str | None]:
        """What the model may call in a round, how it must choose, and the tool that it must call.

        Args:
            is_first: a choice that forces a call holds for the first round only, or there would be no end.
            has_budget: without, the server's own tools are left out.
        """
        server_tools = self.server_tools() if has_budget else {}
        tools = [*self.functions, *(_as_tool(name, tool) for name, (_, tool) in server_tools.items())]
        if len(tools) > MAX_TOOLS:
            raise InvalidRequestError(f"tools: there are {len(tools)} in all, of at most {MAX_TOOLS}.", "tools")
        choice = self.choice
        mode: ToolChoice = "auto"
        named: str | None = None
        if isinstance(choice, str):
            mode = "required" if choice == "required" else "none" if choice == "none" else "auto"
        elif choice.type == "allowed_tools":
            mode = choice.mode
            kinds = self._kinds(tools)
            tools = [tool for tool in tools if _is_chosen(kinds[tool.name], tool.name, choice.tools or [])]
        elif choice.type in ("function", "custom"):
            mode, named = "named", choice.name
        elif is_first:
            kinds, chosen = self._kinds(tools), [choice.model_dump()]
            wanted = [tool for tool in tools if _is_chosen(kinds[tool.name], tool.name, chosen)]
            if not wanted:
                raise InvalidRequestError("tool_choice names a tool that is not among the tools.", "tool_choice")
            tools = wanted
            mode, named = ("named", wanted[0].name) if len(wanted) == 1 else ("required", None)
        if not is_first and mode in ("required", "named"):
            mode, named = "auto", None
        return tools, mode if tools else "none", named

    def _kinds(self, tools: Iterable[Tool]) -> dict[str, CallKind]:
        found = self.server_tools()
        return {tool.name: self._kind(tool.name, found.get(tool.name)) for tool in tools}

    async def list_tools(self, source: McpSource) -> list[McpToolInfo]:
        """Ask an MCP server what it has; what the request leaves out is not shown."""
        connection = await source.connect()
        source.set_tools(await connection.list_tools())
        return list(source.tools.values())

    async def carry_out(self, kind: CallKind, arguments: str) -> CallOutcome:
        """Call a tool of the server; errors are returned to the model."""
        try:
            parsed = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, ValueError):
            return failed_call("The arguments are no JSON object.")
        try:
            if kind.kind == "builtin":
                return await self._call_builtin(kind.item_type, parsed)
            source = next((s for s in self.sources if s.requested.server_label == kind.server_label), None)
            if source is None or kind.name not in source.tools:
                return failed_call(f"There is no tool {kind.name!r} to call.")
            connection = await source.connect()
            return CallOutcome(await connection.call(kind.name, parsed))
        except McpError as error:
            return CallOutcome(None, error.details)

    async def _call_builtin(self, item_type: str, arguments: dict[str, Any]) -> CallOutcome:
        try:
            async with asyncio.timeout(BUILTIN_SECONDS):
                result = await self.builtins[item_type].call(arguments)
        except Exception as error:
            if not isinstance(error, OctavoError):
                logger.exception("A built-in tool failed")
            return failed_call(str(error) if isinstance(error, OctavoError) else "The tool failed.")
        return CallOutcome(result.text, None, result.fields)

    async def close(self) -> None:
        """End all sessions."""
        connections = [source.connection for source in self.sources if source.connection is not None]
        await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)


def _is_chosen(kind: CallKind, name: str, chosen: Sequence[Mapping[str, Any]]) -> bool:
    for one in chosen:
        match one.get("type"):
            case "function" | "custom" if kind.kind == one["type"] and one.get("name") == name:
                return True
            case "mcp" if kind.server_label and one.get("server_label") == kind.server_label:
                if one.get("name") in (None, kind.name):
                    return True
            case str(other) if kind.kind == "builtin" and f"{base_type(other)}_call" == kind.item_type:
                return True
    return False


def _as_tool(name: str, tool: McpToolInfo | BuiltinTool) -> Tool:
    if isinstance(tool, McpToolInfo):
        schema = tool.input_schema if isinstance(tool.input_schema, dict) else None
        return Tool(name, schema, tool.description)
    return Tool(name, tool.parameters, tool.description)


def failed_call(message: str) -> CallOutcome:
    """The outcome of a call that failed here."""
    content = [{"type": "text", "text": message}]
    return CallOutcome(None, {"type": "mcp_tool_execution_error", "content": content})
