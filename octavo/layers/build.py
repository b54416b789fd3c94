"""Construction parameters shared by all layers of a model, and the factory of linear layers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from octavo.layers.linear import Linear, RowParallelLinear
from octavo.parallel import ONE_DEVICE, TensorParallel
from octavo.quantization.config import QuantizationConfig, Unquantized
from octavo.quantization.slot import WeightPart

Split = Literal["column", "row"]


@dataclass(frozen=True, slots=True)
class Build:
    """Parameters of a whole model, and where in it a module is. Type and device are torch's defaults at construction.

    Attributes:
        quantization: decides how each linear layer's weights are stored.
        prefix: the module's name in checkpoints, with a dot at its end; empty for the model itself.
        tensor_parallel: the part of the model to build.
    """

    quantization: QuantizationConfig = field(default_factory=Unquantized)
    prefix: str = ""
    tensor_parallel: TensorParallel = ONE_DEVICE

    @property
    def name(self) -> str:
        """The module's name in checkpoints."""
        return self.prefix.removesuffix(".")

    def at(self, name: str) -> "Build":
        """The parameters for a module inside this one."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def linear(
        self,
        name: str,
        in_features: int,
        out_parts: int | Mapping[str, int],
        *,
        bias: bool = False,
        split: Split | None = None,
        head_size: int = 1,
    ) -> Linear:
        """A linear layer of these sizes in the whole model, stored as the checkpoint's layer of its name is quantised.

        Args:
            name: the layer's attribute name.
            out_parts: number of outputs; or the checkpoint's layers that are computed as one, which stand beside this
                one, with theirs.
            split: what several devices divide: ``column`` the outputs of each part, ``row`` the inputs, so that the
                results are added up. Without it, every device computes the whole layer.
            head_size: outputs are divided in units of so many; fewer units than devices are repeated.

        Raises:
            UnsupportedModelError: parts of one layer are not quantised alike.
            ConfigError: a size cannot be divided over the devices.
        """
        parts = {name: out_parts} if isinstance(out_parts, int) else out_parts
        scheme = self.quantization.common_scheme([f"{self.prefix}{part}" for part in parts])
        tp = self.tensor_parallel
        split = split if tp.size > 1 else None
        inputs = tp.share(in_features, "inputs of a layer") if split == "row" else range(in_features)
        stored: dict[str, WeightPart] = {}
        start = 0
        for part, size in parts.items():
            outputs = range(size)
            if split == "column":
                heads = tp.share(size // head_size, "outputs of a layer", may_repeat=head_size > 1)
                outputs = range(heads.start * head_size, heads.stop * head_size)
            source = (slice(outputs.start, outputs.stop), slice(inputs.start, inputs.stop)) if split else ()
            place = slice(start, start + len(outputs))
            stored[part] = WeightPart(place, (size, in_features), source, split != "row" or tp.rank == 0)
            start = place.stop
        if split == "row":
            return RowParallelLinear(len(inputs), start, stored, scheme, bias=bias, tensor_parallel=tp)
        return Linear(len(inputs), start, stored, scheme, bias=bias)
