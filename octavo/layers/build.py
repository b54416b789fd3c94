"""Construction parameters shared by all layers of a model, and the factory of linear layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from octavo.layers.linear import Linear, PartedLinear, RowParallelLinear
from octavo.parallel import ONE_DEVICE, Section, TensorParallel
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
        out_parts: int | Mapping[str, int] | Sequence[Section],
        *,
        bias: bool = False,
        split: Split | None = None,
        head_size: int = 1,
    ) -> Linear | PartedLinear:
        """A linear layer of these sizes in the whole model, stored as the checkpoint's layer of its name is quantised.

        Args:
            name: the layer's attribute name.
            out_parts: number of outputs; or the checkpoint's layers that are computed as one, which stand beside this
                one, with theirs; or the sections of this layer's outputs.
            split: what several devices divide: ``column`` the outputs of each part, ``row`` the inputs, so that the
                results are added up. Without it, every device computes the whole layer.
            head_size: outputs are divided in units of so many; fewer units than devices are repeated.

        Raises:
            UnsupportedModelError: parts of one layer are not quantised alike.
            ConfigError: a size cannot be divided over the devices.
        """
        if isinstance(out_parts, Mapping):
            parts = {part: [Section(size, head_size)] for part, size in out_parts.items()}
        else:
            parts = {name: [Section(out_parts, head_size)] if isinstance(out_parts, int) else [*out_parts]}
        names = [f"{self.prefix}{part}" for part in parts]
        if self.quantization.may_mix and len({self.quantization.scheme(part) for part in names}) > 1:
            return PartedLinear(
                in_features,
                [
                    self.linear(part, in_features, sections, bias=bias, split=split, head_size=head_size)
                    for part, sections in parts.items()
                ],
            )
        scheme = self.quantization.common_scheme(names)
        tp = self.tensor_parallel
        split = split if tp.size > 1 else None
        inputs = tp.share(in_features, "inputs of a layer") if split == "row" else range(in_features)
        stored: list[tuple[str, WeightPart]] = []
        start = 0
        for part, sections in parts.items():
            size = sum(section.size for section in sections)
            own = [(range(size), range(size))]
            if split == "column":
                own = tp.share_of_sections(sections, "outputs of a layer")
            for place, outputs in own:
                source = (slice(outputs.start, outputs.stop), slice(inputs.start, inputs.stop)) if split else ()
                to = slice(start + place.start, start + place.stop)
                stored.append((part, WeightPart(to, (size, in_features), source, split != "row" or tp.rank == 0)))
            start = stored[-1][1].outputs.stop
        if not scheme.fits(len(inputs), [part.outputs.stop - part.outputs.start for _, part in stored]):
            scheme = self.quantization.plain
        if split == "row":
            return RowParallelLinear(len(inputs), start, stored, scheme, bias=bias, tensor_parallel=tp)
        return Linear(len(inputs), start, stored, scheme, bias=bias)
