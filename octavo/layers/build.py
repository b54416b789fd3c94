"""Construction parameters shared by all layers of a model, and the factory of linear layers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from octavo.layers.linear import Linear
from octavo.quantization.config import QuantizationConfig, Unquantized


@dataclass(frozen=True, slots=True)
class Build:
    """Parameters of a whole model, and where in it a module is. Type and device are torch's defaults at construction.

    Attributes:
        quantization: decides how each linear layer's weights are stored.
        prefix: the module's name in checkpoints, with a dot at its end; empty for the model itself.
    """

    quantization: QuantizationConfig = field(default_factory=Unquantized)
    prefix: str = ""

    @property
    def name(self) -> str:
        """The module's name in checkpoints."""
        return self.prefix.removesuffix(".")

    def at(self, name: str) -> "Build":
        """The parameters for a module inside this one."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def linear(self, name: str, in_features: int, out_parts: int | Mapping[str, int], *, bias: bool = False) -> Linear:
        """A linear layer, stored as the checkpoint's layer of its name is quantised.

        Args:
            name: the layer's attribute name.
            out_parts: number of outputs; or the checkpoint's layers that are computed as one, which stand beside this
                one, with theirs.

        Raises:
            UnsupportedModelError: parts of one layer are not quantised alike.
        """
        parts = {name: out_parts} if isinstance(out_parts, int) else out_parts
        scheme = self.quantization.common_scheme([f"{self.prefix}{part}" for part in parts])
        return Linear(in_features, parts, scheme, bias=bias)
