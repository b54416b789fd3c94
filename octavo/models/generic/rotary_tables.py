"""Tables of all positions in the place of the library's rotary embeddings, which compute theirs anew in every step."""

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from octavo.kernels import RopeTables, gather_rows
from octavo.layers.rotary import PositionTables
from octavo.models.generic.behaviour import are_interleaved, kernel_tables, run_on_cpu

_TABLES = "octavo_tables"
_ARGUMENTS = ["x", "position_ids"]
_LAYER_TYPE = "layer_type"


class TakesTables(Protocol):
    """Who rotates by the kernels' tables."""

    def note_tables(self, cos: torch.Tensor, tables: RopeTables, *, is_interleaved: bool) -> None:
        """Take the kernels' tables that belong to cosines; see :attr:`Rotation.has_interleaved_tables`."""


def tabulate(base: nn.Module, max_positions: int, calls: TakesTables) -> None:
    """Let a model's rotary embeddings read tables; their frequencies do not change.

    Args:
        calls: told of the kernels' form of what an embedding returns, where there is one.
    """
    for module in list(base.modules()):
        kinds = vars(module).get("rope_type")
        layer_types = list(kinds) if isinstance(kinds, dict) else [None] if isinstance(kinds, str) else []
        found = {layer_type: _tables_of(module, max_positions, layer_type) for layer_type in layer_types}
        known = {layer_type: tables for layer_type, tables in found.items() if tables is not None}
        if known and len(known) == len(found):
            tables = _RotaryTables(known, calls)
            module.add_module(_TABLES, tables)
            vars(module)["forward"] = tables.forward


def _tables_of(
    module: nn.Module, max_positions: int, layer_type: str | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Cosines and sines of all positions, ``[P, R]``; None for an embedding that returns something else."""
    options: dict[str, Any] = {} if layer_type is None else {_LAYER_TYPE: layer_type}
    if list(inspect.signature(module.forward).parameters) != [*_ARGUMENTS, *options]:
        return None
    x, positions = torch.empty(0, device="cpu"), torch.arange(max_positions, device="cpu")[None]
    found = run_on_cpu(lambda: module(x, positions, **options))
    if not isinstance(found, tuple) or len(found) != 2:
        return None
    cos, sin = found
    is_table = cos.dim() == 3 and cos.shape[:2] == positions.shape and not cos.is_meta
    return (cos[0], sin[0]) if is_table and sin.shape == cos.shape else None


class _RotaryTables(PositionTables):
    """What an embedding returns for each position, and what differs from that in the kernels' form."""

    _calls: TakesTables

    def __init__(self, tables: Mapping[str | None, tuple[torch.Tensor, torch.Tensor]], calls: TakesTables) -> None:
        super().__init__()
        object.__setattr__(self, "_calls", calls)  # not a submodule
        self._are_interleaved: dict[str | None, bool | None] = {}
        for layer_type, (cos, sin) in tables.items():
            form = self._are_interleaved[layer_type] = are_interleaved(cos, sin)
            named = {"cos": cos, "sin": sin}
            if form is not None:
                kernel_cos, kernel_sin = kernel_tables(cos[None], sin[None], is_interleaved=form)
                named |= {"kernel_sin": kernel_sin} | ({"kernel_cos": kernel_cos} if form else {})
            for name, table in named.items():
                self.register_buffer(_buffer(name, layer_type), table, persistent=False)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[1, T]`` positions → cosines and sines, ``[1, T, R]``."""

        def rows(name: str) -> torch.Tensor:
            return gather_rows(self.get_buffer(_buffer(name, layer_type)), position_ids[0])

        cos = rows("cos")[None]
        form = self._are_interleaved[layer_type]
        if form is not None:
            tables = rows("kernel_cos") if form else cos[0][:, None], rows("kernel_sin")
            self._calls.note_tables(cos, tables, is_interleaved=form)
        return cos, rows("sin")[None]


def _buffer(name: str, layer_type: str | None) -> str:
    return name if layer_type is None else f"{name}_{layer_type}"
