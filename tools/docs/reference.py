"""Reference pages that are generated from the code whenever the documentation is built."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

from prometheus_client import Metric

from octavo.api.app import build_app
from octavo.async_llm import AsyncLLM
from octavo.cli.bench import BENCHMARKS
from octavo.cli.flags import TITLES
from octavo.cli.main import COMMANDS, main
from octavo.config import ServerSettings
from octavo.records import EngineInfo
from octavo.telemetry.metrics import Metrics

EXAMPLES = Path(__file__).parents[2] / "examples"
_HELP_WIDTH = "110"


def command_line_page() -> str:
    """``--help`` of every command; the settings that commands share are on the page of settings."""
    parts = [
        "# Command line\n",
        "Settings of the engine and the server are flags of most commands; [Configuration](../configuration.md) "
        "explains each. `octavo COMMAND --help` prints what follows.\n",
        f"```text\n{_help()}```\n",
    ]
    for name, command in COMMANDS.items():
        parts.append(f"## octavo {name}\n\n{_sentence(command.summary)}\n\n```text\n{_help(name)}```\n")
        if name == "bench":
            parts += [
                f"### octavo bench {benchmark}\n\n{_sentence(inner.summary)}\n\n```text\n{_help(name, benchmark)}```\n"
                for benchmark, inner in BENCHMARKS.items()
            ]
    return "\n".join(parts)


def _help(*command: str) -> str:
    """What a command prints about itself, up to the settings, which have a page of their own."""
    text = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _HELP_WIDTH
    try:
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*command, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    own, begins_settings, _ = text.getvalue().partition(f"\n{TITLES['model']}:\n")
    return f"{own}\nThen the settings.\n" if begins_settings else own


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def http_page() -> str:
    """Every route, with the fields of its request, from the app's OpenAPI description."""
    engine = create_autospec(AsyncLLM, instance=True)
    engine.info = EngineInfo(512, 257, 100, 16, 8, True)
    everything = ServerSettings(enable_admin_endpoints=True, enable_tokenizer_info_endpoint=True)
    description = build_app(engine, everything).openapi()
    schemas = description.get("components", {}).get("schemas", {})
    routes = sorted(
        (path, method.upper(), operation)
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    )
    parts = [
        "# HTTP routes\n",
        "A running server describes itself at `/docs` and `/openapi.json`. Routes for the owner need "
        "`--enable-admin-endpoints`; see [Operations](../operations.md#routes-for-the-owner).\n",
        "| route | does |\n|---|---|",
        *(
            f"| [`{method} {path}`](#{_anchor(method, path)}) | {_summary(operation)} |"
            for path, method, operation in routes
        ),
        "",
    ]
    for path, method, operation in routes:
        parts.append(f"## {method} {path} {{ #{_anchor(method, path)} }}\n\n{_summary(operation)}\n")
        rows = [*_parameters(operation), *_body_fields(operation, schemas)]
        if rows:
            parts += ["| field | type | default |\n|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _summary(operation: Mapping[str, Any]) -> str:
    return str(operation.get("description") or operation.get("summary") or "").splitlines()[0].replace("|", "\\|")


def _anchor(method: str, path: str) -> str:
    return f"{method}{path}".lower().replace("/", "-").replace("{", "").replace("}", "")


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        yield _row(f"{parameter['name']} ({parameter['in']})", parameter.get("schema", {}), parameter.get("required"))


def _body_fields(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = _resolved(content.get("application/json", {}).get("schema", {}), schemas)
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield _row(name, field, name in required)


def _row(name: str, field: Mapping[str, Any], is_required: bool | None) -> str:
    default = field.get("default")
    shown = "required" if is_required else "" if default is None else f"`{default}`"
    return f"| `{name}` | {_type(field)} | {shown} |"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schemas[reference.rsplit("/", 1)[1]] if reference else schema


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[1]
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(_type(one) for one in alternatives if one.get("type") != "null"))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def metrics_page() -> str:
    """Every metric that ``/metrics`` shows, by its type."""
    registry = Metrics("model").registry
    families = sorted(registry.collect(), key=lambda family: family.name)
    rows = [
        f"| `{_sample_name(family)}` | {family.type} | {_sentence(family.documentation)} |"
        for family in families
        if family.name.startswith("octavo:")
    ]
    return "\n".join(
        [
            "# Metrics\n",
            "`GET /metrics` answers in Prometheus' text format. Names are vLLM's with the prefix `octavo:`; "
            "[Monitor a server](../operations.md#metrics) shows how to scrape them.\n",
            "| metric | type | meaning |\n|---|---|---|",
            *rows,
            "",
        ]
    )


def _sample_name(family: Metric) -> str:
    """A family's name as its samples have it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def examples_page() -> str:
    """The index of the examples, and the source of each."""
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    sources = sorted([*EXAMPLES.glob("*/*.py"), *EXAMPLES.glob("deploy/*")])
    parts = [index]
    for path in sources:
        name = path.relative_to(EXAMPLES).as_posix()
        parts[0] = parts[0].replace(f"]({name})", f"](#{_slug(name)})")
        language = {".py": "python", ".yaml": "yaml"}.get(path.suffix, "ini")
        parts.append(f"## {name} {{ #{_slug(name)} }}\n\n```{language}\n{path.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)


def _slug(name: str) -> str:
    return name.replace("/", "-").replace(".", "-").replace("_", "-")


PAGES: dict[str, Callable[[], str]] = {
    "reference/command-line.md": command_line_page,
    "reference/http.md": http_page,
    "reference/metrics.md": metrics_page,
    "examples.md": examples_page,
}
