"""Figures and pictures of the README come from files."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def speed_plot() -> ModuleType:
    """The script that draws the picture."""
    spec = importlib.util.spec_from_file_location("speed_plot", ROOT / "tools" / "docs" / "speed_plot.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_speed_is_current() -> None:
    module = speed_plot()
    assert module.PICTURE.read_text(encoding="utf-8") == module.draw(), "Run: python tools/docs/speed_plot.py"


def test_the_number_of_lines_is_true() -> None:
    stated = re.search(r"about ([\d,]+) lines of Python", README)
    assert stated is not None
    number = int(stated[1].replace(",", ""))
    actual = sum(len(path.read_bytes().splitlines()) for path in (ROOT / "octavo").rglob("*.py"))
    assert abs(actual - number) < 0.1 * number, f"octavo/ has {actual} lines"
