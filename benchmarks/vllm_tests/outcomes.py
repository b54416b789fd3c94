"""One record per test: how it ended and why."""

import ast
from pathlib import Path
from typing import Any

RESULTS = "OCTAVO_VLLM_TESTS_RESULTS"
"""The environment variable that names the file of results, one JSON object per line."""

INTERNAL = "drives vLLM's own code"
_STARTS_SOMETHING = ("Remote", "LLM(", "vllm_runner", "subprocess")


def outcome(test: str, kind: str, reason: str, seconds: float = 0.0) -> dict[str, Any]:
    """The record of a test.

    Args:
        test: pytest's id.
        kind: ``passed``, ``failed`` or ``deselected``.
        reason: why it failed or was deselected.
        seconds: how long it took.
    """
    return {"test": test, "outcome": kind, "reason": reason, "seconds": round(seconds, 2)}


def internal_tests(root: Path, file: Path) -> list[dict[str, Any]]:
    """The tests of a file that starts no server and no engine, deselected; empty if it may start one.

    Such tests call functions and classes of vLLM. Parametrised ones count once.

    Args:
        root: where vLLM's sources lie.
        file: relative to that.
    """
    text = (root / file).read_text(encoding="utf-8")
    fixtures = (root / file.parent / "conftest.py").read_text() if (root / file.parent / "conftest.py").exists() else ""
    if any(word in text + fixtures for word in _STARTS_SOMETHING):
        return []
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, functions)]
    return [outcome(f"{file.as_posix()}::{name}", "deselected", INTERNAL) for name in names if name.startswith("test_")]
