"""Only ``octavo/platforms`` asks which device there is and speaks to it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo

ROOT = Path(octavo.__file__).parent
OWNER = ROOT / "platforms"
# A call of a kernel finds the implementation that is bound for the tensor's type of device.
DISPATCH = ROOT / "kernels" / "dispatch.py"

RUNTIME = "use octavo.platforms.runtime_of(device)"
FACT = "use a fact of the Platform or of runtime_of(device), or register an implementation for a kernel set"
TORCH_NAMES = {"accelerator", "cuda", "get_device_module", "hip", "mps", "xpu"}
VERSION_NAMES = {"cuda", "hip", "xpu"}
TENSOR_FLAGS = {"is_cpu", "is_cuda", "is_hip", "is_mps", "is_xpu"}


def violations(source: str) -> Iterator[tuple[int, str]]:
    """Line and remedy of each use of a device that belongs in ``octavo/platforms``."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name("torch"), name) if name in TORCH_NAMES:
                yield node.lineno, f"torch.{name}: {RUNTIME}"
            case ast.Attribute(ast.Attribute(ast.Name("torch"), "version"), name) if name in VERSION_NAMES:
                yield node.lineno, f"torch.version.{name}: use octavo.platforms.select_platform or has_cuda"
            case ast.ImportFrom(module="torch", names=names) if any(name.name in TORCH_NAMES for name in names):
                yield node.lineno, f"from torch import {names[0].name}: {RUNTIME}"
            case ast.Import(names=names) | ast.ImportFrom(names=names) if any(
                (getattr(node, "module", None) or name.name).startswith("torch.cuda") for name in names
            ):
                yield node.lineno, f"import torch.cuda: {RUNTIME}"
            case ast.Attribute(ast.Name(name) | ast.Attribute(attr=name), "type") if name.endswith("device"):
                yield node.lineno, f"{name}.type: {FACT}"
            case ast.Attribute(attr=name) if name in TENSOR_FLAGS:
                yield node.lineno, f".{name}: {FACT}"
            case ast.keyword(arg="pin_memory") | ast.Attribute(attr="pin_memory"):
                yield node.lineno, "pin_memory: use runtime_of(device).empty_host"


def test_platforms_alone_know_devices() -> None:
    found = [
        f"{path.relative_to(ROOT.parent)}:{line}: {remedy}"
        for path in sorted(ROOT.rglob("*.py"))
        if OWNER not in path.parents
        for line, remedy in violations(path.read_text(encoding="utf-8"))
        if not (path == DISPATCH and "device.type" in remedy)
    ]
    assert not found, "\n".join(["Devices are used outside octavo/platforms:", *found])


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.synchronize()",
        "stream: torch.cuda.Stream | None = None",
        "from torch import cuda",
        "import torch.cuda",
        "from torch.cuda import Stream",
        "torch.version.hip",
        "torch.accelerator.synchronize()",
        "x.device.type == 'cpu'",
        "self._device.type",
        "device.type",
        "x.is_cuda",
        "torch.empty(1, pin_memory=True)",
        "x.pin_memory()",
    ],
)
def test_a_use_is_found(line: str) -> None:
    assert list(violations(line))


@pytest.mark.parametrize("line", ["torch.device('cuda')", "tl.extra.cuda.gdc_wait()", "event.type", "x.device"])
def test_what_is_no_use_is_let_be(line: str) -> None:
    assert not list(violations(line))
