"""The Python examples of docs/clients.md run as they stand, but for the address and the model's name."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
EXAMPLES = re.findall(r"^## ([^\n]+)$(?:(?!^## ).)*?^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_runs(server_url: str, name: str, code: str) -> None:
    for package in re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    code = code.replace("http://localhost:8000", server_url).replace("bundled:smollm2", "fake/model")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert any(text in done.stdout for text in ("Hello from Octavo.", "The sum is 5.", "Bern")), done.stdout
