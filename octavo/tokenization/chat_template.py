"""Renders chat templates: a conversation becomes one text, with Jinja in a sandbox and limits on time and size.

The environment is the one templates are written for (Hugging Face's ``apply_chat_template``): blocks are trimmed,
``raise_exception``, ``strftime_now`` and ``tojson`` exist, ``{% break %}`` and ``{% generation %}`` are known.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import ChatTemplateError
from octavo.tokenization import template_limits as limits

MAX_TEMPLATE_LENGTH = 1 << 20
CACHED_TEMPLATES = 32
MAX_JSON_INDENT = 16
_CHECK_DEADLINE = "octavo check deadline"
_CONCAT = "octavo concat"
_CONTINUATION_MARKER = "OCTAVO_CONTINUES_HERE "


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A template ready to render.

    Attributes:
        takes_content_parts: it loops over a message's ``content``, so it accepts lists of parts.
        takes_content_text: it accepts a message's ``content`` as a string, always or after checking its type.
        takes_tools: it uses ``tools``; otherwise the model never sees them.
    """

    template: jinja2.Template
    takes_content_parts: bool
    takes_content_text: bool
    takes_tools: bool


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    max_seconds: float = limits.MAX_SECONDS,
) -> str:
    """The conversation as one text.

    Args:
        values: further variables of the template, such as ``tools`` and ``bos_token``.
        add_generation_prompt: end with the header of the assistant's turn.
        continue_final_message: cut the text right after the last message's content.

    Raises:
        ChatTemplateError: the template is malformed, raised an error, or ran past its limits.
    """
    if continue_final_message and add_generation_prompt:
        raise ChatTemplateError(
            "add_generation_prompt and continue_final_message exclude each other.", "continue_final_message"
        )
    compiled = compile_template(template)
    marked = _add_continuation_marker(messages) if continue_final_message else list(messages)
    variables = {**values, "messages": marked, "add_generation_prompt": add_generation_prompt}
    try:
        with limits.budget(max_seconds):
            text = limits.checked_concat(compiled.template.generate(variables))
    except limits.TemplateLimitError as error:
        raise ChatTemplateError(f"The chat template was stopped: {error}.", "chat_template") from None
    except RecursionError:
        raise ChatTemplateError(
            "The chat template was stopped: it called itself too deeply.", "chat_template"
        ) from None
    except Exception as error:  # A template can fail with whatever Python raises: it is a program.
        raise ChatTemplateError(f"The chat template failed: {error}", "messages") from None
    return _cut_at_continuation_marker(text, messages[-1]) if continue_final_message else text


@lru_cache(CACHED_TEMPLATES)
def compile_template(template: str) -> CompiledTemplate:
    """Parse ``template`` and add time checks to its loops; the last few results are cached.

    Raises:
        ChatTemplateError: it is too long or not valid Jinja.
    """
    if len(template) > MAX_TEMPLATE_LENGTH:
        raise ChatTemplateError(
            f"A chat template takes at most {MAX_TEMPLATE_LENGTH} characters, got {len(template)}.", "chat_template"
        )
    environment = _environment()
    try:
        tree = environment.parse(template)
        loops_over_content = _loops_over_content(tree)
        takes_tools = any(name.name == "tools" and name.ctx == "load" for name in tree.find_all(nodes.Name))
        tests_for_string = any(test.name == "string" for test in tree.find_all(nodes.Test))
        _insert_checks(tree)
        code = environment.compile(tree)
        compiled = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"The chat template is malformed, line {error.lineno}: {error.message}.", "chat_template"
        ) from None
    except (RecursionError, MemoryError, SyntaxError, ValueError, jinja2.TemplateError) as error:
        raise ChatTemplateError(f"The chat template cannot be compiled: {error}.", "chat_template") from None
    takes_text = not loops_over_content or tests_for_string
    return CompiledTemplate(compiled, loops_over_content, takes_text, takes_tools)


class _LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that also measures operators, string methods and joined output."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(limits.checked_concat)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        limits.check_binary_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (Jinja's signature)
        limits.check_deadline()
        return super().call(__context, limits.guarded_method(__obj), *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked_format(*args: Any, **kwargs: Any) -> str:
            limits.check_format(value.__self__)
            limits.check_printable((args, kwargs))
            return wrapped(*args, **kwargs)

        return checked_format


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's tokens for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(1)
def _environment() -> _LimitedEnvironment:
    environment = _LimitedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=limits.check_printable,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    for unbounded in ("urlize", "pprint"):
        del environment.filters[unbounded]
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    for name, function in list(environment.filters.items()):
        environment.filters[name] = limits.guarded_filter(name, function)
    environment.filters[_CHECK_DEADLINE] = limits.check_deadline
    environment.filters[_CONCAT] = limits.concat_values
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _insert_checks(tree: nodes.Template) -> None:
    """Add a time check to every loop iteration and macro call, and a length check to ``~``."""
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        assert isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock))
        clock = nodes.Filter(nodes.Const(None), _CHECK_DEADLINE, [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(clock, lineno=node.lineno))
    _ConcatToFilter().visit(tree)
    tree.set_environment(_environment())


class _ConcatToFilter(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (Jinja's visitor protocol)
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), _CONCAT, [], [], None, None, lineno=node.lineno)


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether a loop runs over a message's ``content``, or over a variable that was set to it."""
    aliases: set[str] = set()
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, aliases):
            aliases.add(assignment.target.name)
    return any(_is_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, aliases: set[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    match node:
        case nodes.Name(name=name):
            return name in aliases
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _add_continuation_marker(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a marker after the last one's text."""
    if not messages:
        raise ChatTemplateError("continue_final_message needs a message to continue.", "messages")
    *others, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*others, {**last, "content": content + _CONTINUATION_MARKER}]
    if isinstance(content, list):
        for index in reversed(range(len(content))):
            part = content[index]
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                marked = {**part, "text": part["text"] + _CONTINUATION_MARKER}
                return [*others, {**last, "content": [*content[:index], marked, *content[index + 1 :]]}]
    raise ChatTemplateError("continue_final_message needs a last message with text.", "messages")


def _cut_at_continuation_marker(text: str, last: Mapping[str, Any]) -> str:
    mark = _CONTINUATION_MARKER.strip()
    end = text.rfind(mark)
    if end < 0:
        raise ChatTemplateError(
            f"The chat template leaves out the last message (role {last.get('role')!r}), so it cannot be continued.",
            "continue_final_message",
        )
    # A template that trims contents has removed the marker's trailing space: then remove the message's as well.
    is_trimmed = not text.startswith(_CONTINUATION_MARKER, end)
    return text[:end].rstrip() if is_trimmed else text[:end]


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and indent > MAX_JSON_INDENT:
        raise limits.TemplateLimitError(f"it indented JSON by more than {MAX_JSON_INDENT}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
