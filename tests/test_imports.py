"""What importing Octavo costs and offers."""

import subprocess
import sys
from pathlib import Path

import pytest

import octavo
import octavo.sampling

HEAVY = (
    *("torch", "transformers", "fastapi", "huggingface_hub", "tokenizers", "numpy"),
    *("xgrammar", "llguidance", "jsonschema", "mcp", "openai_harmony", "openai", "anthropic", "grpc", "httpx"),
    *("opentelemetry.sdk", "opentelemetry.exporter"),
)
NAMES_LOADED = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("octavo", set()),
        ("octavo.config", set()),
        ("octavo.cli.main", set()),
        ("octavo.cli.serve", set()),
        ("octavo.records", {"numpy"}),
        ("octavo.engine.messages", {"numpy"}),
        ("octavo.async_llm", {"numpy", "tokenizers", "huggingface_hub"}),
        ("octavo.api.launch", {"numpy", "tokenizers", "huggingface_hub"}),
        ("octavo.api.server", {"fastapi", "numpy", "tokenizers", "huggingface_hub"}),
        ("octavo.api.process", {"numpy", "tokenizers", "huggingface_hub"}),
    ],
)
def test_modules_needed_at_start_are_light(module: str, allowed: set[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import {module}; {NAMES_LOADED}"], capture_output=True, text=True, check=True
    )
    assert set(eval(ended.stdout)) <= allowed


def test_public_names() -> None:
    assert dir(octavo) == sorted(octavo.__all__)
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = octavo.Nonsense
    for name in octavo.sampling.__all__:
        assert getattr(octavo.sampling, name).__name__ == name


def test_every_folder_is_a_package() -> None:
    root = Path(octavo.__file__).parent
    folders = {path.parent for path in root.rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)
