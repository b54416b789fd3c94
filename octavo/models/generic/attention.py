"""The library's attention interface, with Octavo's paged attention behind it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from octavo.kernels import NO_TERMS, AttentionSpec, HeadNorms, HeadTerms, RopeTables, rms_norm
from octavo.layers.attention import Attention
from octavo.layers.build import Build
from octavo.layers.context import StepContext
from octavo.layers.norm import RMSNorm
from octavo.models.generic.behaviour import Rotation, are_interleaved, as_pairs, kernel_tables, reordered
from octavo.models.generic.division import Division
from octavo.models.generic.rebind import original, rebind
from octavo.models.generic.trace import ROTARY, SINKS, AttentionCall

ATTENTION = "octavo"
"""The name under which the interface knows Octavo's attention. It has no mask function, so no masks are made."""

_CALLS = "octavo_calls"
_LEAST_ROTARY = 2


class AttentionCalls(nn.Module):
    """The attention layers of a model, in the order in which a step calls them.

    Args:
        calls: what each call asks for.
        build: parameters for the module that has the layers.
    """

    def __init__(self, calls: Sequence[AttentionCall], build: Build, division: Division) -> None:
        super().__init__()
        self._dtype = torch.get_default_dtype()
        self.layers = nn.ModuleList(_CalledAttention(call, build.at(call.name), division) for call in calls)
        self._ordered = [layer for layer in self.layers if isinstance(layer, _CalledAttention)]
        self._callers: dict[str, set[Rotation | None]] = {}
        for call in calls:
            self._callers.setdefault(call.module, set()).add(call.rotation)
        self._forms: dict[Rotation, bool | None] = {}
        self._next = 0
        self._step: StepContext | None = None
        self._positions: torch.Tensor | None = None
        # Of the next call; of calls whose queries and keys come rotated, the smallest that turns nothing.
        self._rope: RopeTables | None = None
        self._still: RopeTables | None = None
        self._are_normed = False  # those of the next call
        self._tables: list[tuple[torch.Tensor, bool, RopeTables]] = []

    def attach(self, base: nn.Module) -> None:
        """Let the library's modules find these layers, and leave rotation to them where it is the usual one."""
        for path, rotations in self._callers.items():
            module = base.get_submodule(path)
            object.__setattr__(module, _CALLS, self)  # not a submodule
            rotation = rotations.pop() if len(rotations) == 1 else None
            if rotation is not None:
                rebind(module, ROTARY, partial(self._take_tables, original(module, ROTARY), rotation))

    def take_head_norms(self, base: nn.Module) -> None:
        """Leave the norms of each head's query and key to the attention that reads them."""
        for layer in self._ordered:
            layer.take_head_norms(base)

    def begin(self, positions: torch.Tensor, step: StepContext) -> None:
        """Start a step with tokens at ``positions``, ``[T]``."""
        self._positions, self._step = positions, step
        self._next = 0

    def note_tables(self, cos: torch.Tensor, tables: RopeTables, *, is_interleaved: bool) -> None:
        """Take the kernels' tables that belong to cosines which the library's modules are about to get."""
        self._tables.append((cos, is_interleaved, tables))

    def _take_tables(
        self,
        rotate: Callable[..., Any],
        rotation: Rotation,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> Any:
        """Stands in for the library's function: queries and keys stay as they are, and their layer rotates them."""
        form = rotation.has_interleaved_tables
        self._rope = next(
            (tables for noted, noted_form, tables in self._tables if noted is cos and noted_form == form), None
        )
        if self._rope is None:
            if rotation not in self._forms:  # once, in the first step, which is not captured
                self._forms[rotation] = are_interleaved(cos, sin)
            if self._forms[rotation] != form:
                self._are_normed = True
                q, k = self._ordered[self._next].normed_heads(q, k)
                if rotation.is_interleaved:
                    q, k = (reordered(heads, rotation.rotary_dim, as_pairs) for heads in (q, k))
                return rotate(q, k, cos, sin)
            kernel_cos, kernel_sin = kernel_tables(cos, sin, is_interleaved=form)
            self._rope = kernel_cos.to(self._dtype), kernel_sin.to(self._dtype)
            self.note_tables(cos, self._rope, is_interleaved=form)
        return q, k

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """The next call of the step, ``[1, H, T, D] → [1, T, H, D]``.

        Args:
            sinks: ``[H]``, of all devices' heads; see :class:`HeadTerms`.
        """
        layer = self._ordered[self._next]
        self._next += 1
        rope, self._rope = self._rope or self._resting(), None
        norms = None if self._are_normed else layer.head_norms
        self._are_normed = False
        attended: torch.Tensor = layer(query, key, value, sinks, rope, norms, self._step)
        return attended

    def end(self) -> None:
        """End the step, and forget its tensors."""
        self._step = self._positions = self._rope = self._still = None
        self._tables.clear()

    def _resting(self) -> RopeTables:
        """Tables that rotate nothing."""
        if self._still is None:
            assert self._positions is not None, "a step runs"
            size = len(self._positions), 1, _LEAST_ROTARY
            ones = torch.ones(size, dtype=self._dtype, device=self._positions.device)
            self._still = ones, torch.zeros_like(ones)
        return self._still


class _CalledAttention(nn.Module):
    """One call: heads of the library's layout in, Octavo's attention inside.

    Keys and values of different sizes are padded to the larger one: a cache has one size of heads.
    """

    def __init__(self, call: AttentionCall, build: Build, division: Division) -> None:
        super().__init__()
        num_heads, num_kv_heads = division.heads(call)
        first = division.tensor_parallel.rank * num_heads if num_heads < call.num_heads else 0
        self._own = slice(first, first + num_heads)
        self._head_dim = max(call.key_dim, call.value_dim)
        self._value_dim = call.value_dim
        spec = AttentionSpec(num_heads, num_kv_heads, self._head_dim, call.scale, call.softcap)
        self.attention = Attention(build.name, spec, build, call.window)
        self._sources = call.sources
        self._norms: tuple[RMSNorm, RMSNorm] | None = None

    def take_head_norms(self, base: nn.Module) -> None:
        """Take over the norms of queries and keys, if the attention can compute them."""
        if self._sources is None:
            return
        first, second = map(base.get_submodule, self._sources)
        if not isinstance(first, RMSNorm) or not isinstance(second, RMSNorm) or first.eps != second.eps:
            return
        if {len(norm.weight) for norm in (first, second)} != {self._head_dim}:
            return
        object.__setattr__(self, "_norms", (first, second))
        for norm in (first, second):
            vars(norm)["forward"] = _unchanged

    @property
    def head_norms(self) -> HeadNorms | None:
        """The norms of each head's query and key."""
        if self._norms is None:
            return None
        return HeadNorms(self._norms[0].weight, self._norms[1].weight, self._norms[0].eps)

    def normed_heads(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys, normed if this layer has their norms."""
        norms = self.head_norms
        if norms is None:
            return query, key
        return rms_norm(query, norms.query, norms.eps), rms_norm(key, norms.key, norms.eps)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        rope: RopeTables,
        norms: HeadNorms | None,
        step: StepContext,
    ) -> torch.Tensor:
        joined = joined_heads(query, key, value, self._head_dim, rope[0].dtype)
        terms = NO_TERMS if sinks is None else HeadTerms(sinks[self._own].float())
        attended = self.attention(joined, rope, norms, step, terms)
        return attended.view(1, len(attended), -1, self._head_dim)[..., : self._value_dim]


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def joined_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """``[T, (H + 2·Hkv)·head_dim]`` of ``[1, H, T, ≤ head_dim]`` each, without a copy where they lie so."""
    joined = _joined(query, key, value) if query.shape[3] == value.shape[3] else None
    if joined is not None:
        return joined
    heads = [_padded(part[0].transpose(0, 1).to(dtype), head_dim) for part in (query, key, value)]
    return torch.cat(heads, 1).flatten(1)


def _padded(heads: torch.Tensor, head_dim: int) -> torch.Tensor:
    missing = head_dim - heads.shape[-1]
    return F.pad(heads, (0, missing)) if missing else heads


def _joined(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """``[T, (H + 2·Hkv)·D]`` without a copy, if queries, keys and values are parts of one GEMM's rows; else None."""
    num_tokens, head_dim = query.shape[2:]
    width = head_dim * (query.shape[1] + key.shape[1] + value.shape[1])
    place = query.storage_offset()
    for heads in (query, key, value):
        is_next = heads.untyped_storage().data_ptr() == query.untyped_storage().data_ptr()
        if not is_next or heads.storage_offset() != place or not _has_strides(heads, (head_dim, width, 1)):
            return None
        place += heads.shape[1] * head_dim
    return query.as_strided((num_tokens, width), (width, 1))


def _has_strides(heads: torch.Tensor, wanted: tuple[int, int, int]) -> bool:
    """Whether ``[1, H, T, D]`` lies so in memory; where a dimension has one entry, its stride means nothing."""
    entries = zip(heads.shape[1:], heads.stride()[1:], wanted, strict=True)
    return all(size == 1 or stride == expected for size, stride, expected in entries)


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    calls: AttentionCalls = getattr(module, _CALLS)
    return calls.attend(query, key, value, options.get(SINKS)), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
