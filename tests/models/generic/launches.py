"""Lists the operations of a decode step: Octavo's by their names, PyTorch's with ``aten.`` before them.

Those that norm the row that they read have ``normed`` before them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from library_models import SIZES, config_of
from pytest import MonkeyPatch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.kernels import AttentionSpec, DeferredNorm, HeadNorms, RopeTables
from octavo.kernels.attention import LayerAttention
from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.dispatch import Kernel
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.experts import Experts
from octavo.layers.linear import Linear
from octavo.layers.moe import Router
from octavo.models.base import cache_specs
from octavo.models.generic.lazy import LazyTensor
from octavo.models.registry import build_model

ATTENTION, NORMED_ATTENTION = "attention", "attention with head norms"
_NOTHING = ("detach", "dropout", "empty", "empty_like", "new_empty")
"""Operations that compute nothing, outside of training."""


class _Launches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._is_inside = False

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """What runs in this context is a part of one operation."""
        if not self._is_inside:
            self.names.append(name)
        outer, self._is_inside = self._is_inside, True
        yield
        self._is_inside = outer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name not in _NOTHING and not (func.is_view and _memory(result) == _memory(args[0])):
            with self.one(f"aten.{name}"):
                pass
        return result


def _memory(value: Any) -> int:
    return (value if isinstance(value, torch.Tensor) else value[0]).untyped_storage().data_ptr()


class _Attention(LayerAttention):
    def __init__(self, launches: _Launches) -> None:
        self._launches = launches

    def run(
        self, qkv: torch.Tensor, rope: RopeTables, norms: HeadNorms | None, *args: Any, **options: Any
    ) -> torch.Tensor:
        spec = next(value for value in args if isinstance(value, AttentionSpec))
        with self._launches.one(ATTENTION if norms is None else NORMED_ATTENTION):
            return qkv.new_empty(len(qkv), spec.num_heads * spec.head_dim)


def _read(x: torch.Tensor | DeferredNorm, *, writes_rows: bool = False) -> tuple[torch.Tensor, str]:
    """An operation's rows, and what its name begins with.

    Args:
        writes_rows: whether the operation also returns the rows that it norms.
    """
    if not isinstance(x, DeferredNorm):
        return x, ""
    total = x.x if x.residual is None else torch.empty_like(x.x)
    x.settle(total, torch.empty_like(x.x) if writes_rows else None)
    return total, "normed "


def layer_launches(config: ModelConfig, monkeypatch: MonkeyPatch) -> list[str]:
    """What a layer of a model launches for a token, from its attention to that of the next layer."""
    launches = _Launches()
    call = Kernel.__call__

    def run_kernel(self: Any, *args: Any, **options: Any) -> Any:
        with launches.one(self.__name__):
            return call(self, *args, **options)

    def run_linear(self: Linear, x: torch.Tensor | DeferredNorm, out: torch.Tensor | None = None) -> torch.Tensor:
        x, kind = _read(x)
        with launches.one(f"{kind}gemm"):
            return x.new_empty(len(x), self.out_features)

    def run_gated(self: Linear, x: torch.Tensor | DeferredNorm, activation: str) -> torch.Tensor:
        x, kind = _read(x)
        with launches.one(f"{kind}gated gemm"):
            return x.new_empty(len(x), self.out_features // 2)

    def run_router(self: Router, x: torch.Tensor | DeferredNorm) -> tuple[torch.Tensor, torch.Tensor]:
        x, kind = _read(x, writes_rows=True)
        with launches.one(f"{kind}router"):
            shape = len(x), self.routing.num_chosen
            return x.new_empty(shape, dtype=torch.int64), x.new_empty(shape, dtype=torch.float32)

    def run_experts(self: Experts, x: torch.Tensor, choice: Chosen | DeferredChoice) -> torch.Tensor:
        assert not isinstance(x, LazyTensor), "kernels read its memory"
        with launches.one("experts"):
            return x.new_empty(x.shape)

    monkeypatch.setattr(Kernel, "__call__", run_kernel)
    monkeypatch.setattr(Router, "forward", run_router)
    monkeypatch.setattr(Experts, "run", run_experts)
    monkeypatch.setattr(Linear, "forward", run_linear)
    monkeypatch.setattr(Linear, "gated", run_gated)
    model = build_model(config, Build(), config.max_position_embeddings)
    specs = cache_specs(model)
    step = StepContext(_Attention(launches), dict.fromkeys(specs, (torch.empty(0),)), dict.fromkeys(specs))
    with torch.inference_mode():
        model(torch.tensor([3]), torch.tensor([5]), step)
        launches.names.clear()
        with launches:
            model(torch.tensor([3]), torch.tensor([5]), step)
    first, second, *_ = (i for i, name in enumerate(launches.names) if name in (ATTENTION, NORMED_ATTENTION))
    return launches.names[first:second]


def check_layer(model: Any, changes: dict[str, Any], expected: list[str], monkeypatch: MonkeyPatch) -> None:
    """A layer launches what is expected, with the library's modules and with its family's."""
    kind, architecture = model
    assert layer_launches(config_of(kind, architecture, **changes), monkeypatch) == expected
    raw = kind(**(SIZES | changes)).to_dict() | {"architectures": [architecture]}
    assert layer_launches(parse_config(raw, "octavo"), monkeypatch) == expected
