"""How a model of the transformers library is divided over devices: by the library's own plan, as far as it is simple.

What the plan divides in another way than by a layer's outputs or inputs is computed whole on every device, which is
always right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ConfigError
from octavo.layers.build import Split
from octavo.models.generic.trace import AttentionCall, Trace
from octavo.parallel import TensorParallel

_SPLITS: dict[str, Split] = {"colwise": "column", "rowwise": "row"}


@dataclass(frozen=True, slots=True)
class Division:
    """The part of a model that a device has.

    Attributes:
        tensor_parallel: which part it is.
        plan: the library's, from paths with ``*`` for numbers to the name of a division.
        attention: the calls of attention by the calling module.
    """

    tensor_parallel: TensorParallel
    plan: Mapping[str, str] = field(default_factory=dict)
    attention: Mapping[str, AttentionCall] = field(default_factory=dict)

    def split(self, path: str) -> Split | None:
        """What is divided of the linear layer at ``path``: its outputs, its inputs, or nothing."""
        return _SPLITS.get(self.plan.get(_numberless(path), ""))

    def head_size(self, path: str, num_outputs: int) -> int:
        """Outputs of a linear layer that stay together: those of a head, in an attention module."""
        call = self.attention.get(path.rpartition(".")[0])
        if call is None or self.split(path) != "column":
            return 1
        for size in (call.key_dim, call.value_dim):
            if num_outputs in (call.num_heads * size, call.num_kv_heads * size):
                return size
        return max(num_outputs // call.num_heads, 1)

    def heads(self, call: AttentionCall) -> tuple[int, int]:
        """Heads, and key/value heads, that the device has of a call of attention."""
        caller = _numberless(call.module)
        if not any(how == "colwise" and path.rpartition(".")[0] == caller for path, how in self.plan.items()):
            return call.num_heads, call.num_kv_heads
        return self.tensor_parallel.share_of_heads(call.num_heads, call.num_kv_heads)


def _numberless(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def division_of(library: Any, architecture: str, traced: Trace, tensor_parallel: TensorParallel) -> Division:
    """The division of a model over as many devices as ``tensor_parallel`` says.

    Raises:
        ConfigError: the library has no plan for it.
    """
    if tensor_parallel.size == 1:
        return Division(tensor_parallel)
    plan = library.base_model_tp_plan
    if not plan:
        raise ConfigError(
            f"tensor_parallel_size is {tensor_parallel.size}, but the transformers library has no plan to divide "
            f"{architecture} over devices. Leave it out."
        )
    return Division(tensor_parallel, plan, {call.module: call for call in traced.attention})
