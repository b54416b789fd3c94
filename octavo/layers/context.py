"""What layers that remember need beside a step's tokens: their caches, and where in them the step's rows are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from octavo.kernels.attention import LayerAttention
from octavo.records import CacheSpec, Shared


@dataclass(slots=True)
class StepContext:
    """A step as layers see it, passed through a model's forward.

    Attributes:
        attention: implementation of attention over keys and values.
        caches: tensors of each cache by its name, in the layout of its kind; see :mod:`octavo.execution.kv_cache`.
        inputs: per cache, what its group's block table means for this step, in the form that its kind's kernels take.
        new_keys: per cache that several layers read, the step's keys and values as its own layer projects them,
            ``[T, 2·Hkv·D]``; filled by that layer.
        chosen: positions of the tokens that each query attends to, as the last indexer chose them; None for all. See
            :func:`octavo.kernels.indexer.choose_tokens`.
    """

    attention: LayerAttention
    caches: Mapping[str, tuple[torch.Tensor, ...]]
    inputs: Mapping[str, Any]
    new_keys: dict[str, torch.Tensor] = field(default_factory=dict)
    chosen: torch.Tensor | None = None


def compute_type() -> str:
    """The name of the type that layers are being built for, as cache specs have it."""
    return str(torch.get_default_dtype()).removeprefix("torch.")


class CachedLayer(nn.Module):
    """A layer that remembers. It declares its caches; memory and block tables come with each step.

    Attributes:
        cache_specs: its caches by name, unique within the model.
    """

    def __init__(self, cache_specs: Mapping[str, CacheSpec | Shared]) -> None:
        super().__init__()
        self.cache_specs = cache_specs
