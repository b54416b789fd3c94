"""Tables of all positions in the place of the library's rotary embeddings, which compute theirs anew in every step."""

import inspect
from typing import Any, Protocol

import torch
from torch import nn

from octavo.kernels import RopeTables, gather_rows
from octavo.layers.rotary import PositionTables
from octavo.models.generic.behaviour import has_equal_halves, signed_sine

_TABLES = "octavo_tables"
_ARGUMENTS = ["x", "position_ids"]
_LAYER_TYPE = "layer_type"


class TakesTables(Protocol):
    """Who rotates by the kernels' tables."""

    def note_tables(self, cos: torch.Tensor, tables: RopeTables) -> None:
        """Take the kernels' tables that belong to cosines."""


def tabulate(base: nn.Module, max_positions: int, calls: TakesTables) -> None:
    """Let a model's rotary embeddings read tables; their frequencies do not change.

    Args:
        calls: told of the kernels' form of what an embedding returns, where there is one.
    """
    for module in list(base.modules()):
        kinds = vars(module).get("rope_type")
        layer_types = list(kinds) if isinstance(kinds, dict) else [None] if isinstance(kinds, str) else []
        expected = [*_ARGUMENTS, _LAYER_TYPE][: 2 + isinstance(kinds, dict)]
        if layer_types and list(inspect.signature(module.forward).parameters) == expected:
            tables = _RotaryTables(module, layer_types, max_positions, calls)
            module.add_module(_TABLES, tables)
            vars(module)["forward"] = tables.forward


class _RotaryTables(PositionTables):
    """What an embedding returns for each position, and sines in the kernels' form."""

    _calls: TakesTables

    def __init__(
        self, module: nn.Module, layer_types: list[str | None], max_positions: int, calls: TakesTables
    ) -> None:
        super().__init__()
        object.__setattr__(self, "_calls", calls)  # not a submodule
        self._have_kernel_form: dict[str | None, bool] = {}
        x, positions = torch.empty(0, device="cpu"), torch.arange(max_positions, device="cpu")[None]
        for layer_type in layer_types:
            options: dict[str, Any] = {} if layer_type is None else {_LAYER_TYPE: layer_type}
            cos, sin = (table[0] for table in module(x, positions, **options))
            self._have_kernel_form[layer_type] = has_equal_halves(cos, sin)
            named = {"cos": cos, "sin": sin}
            if self._have_kernel_form[layer_type]:
                named["signed"] = signed_sine(sin)
            for name, table in named.items():
                self.register_buffer(_buffer(name, layer_type), table, persistent=False)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[1, T]`` positions → cosines and sines, ``[1, T, R]``."""

        def rows(name: str) -> torch.Tensor:
            return gather_rows(self.get_buffer(_buffer(name, layer_type)), position_ids[0])

        cos = rows("cos")[None]
        if self._have_kernel_form[layer_type]:
            self._calls.note_tables(cos, (cos[0][:, None], rows("signed")[:, None]))
        return cos, rows("sin")[None]


def _buffer(name: str, layer_type: str | None) -> str:
    return name if layer_type is None else f"{name}_{layer_type}"
