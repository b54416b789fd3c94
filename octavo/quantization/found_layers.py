"""What the files of a checkpoint say of its layers, where the configuration says otherwise."""

from dataclasses import dataclass

from octavo.hub.stored_layers import StoredLayers
from octavo.quantization.config import QuantizationConfig
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.scheme import LinearScheme


@dataclass(frozen=True, slots=True)
class FoundLayers(QuantizationConfig):
    """A configuration, but for layers that are not quantised in the files, and heads that are.

    Attributes:
        declared: what the configuration says.
        found: what the files say.
    """

    declared: QuantizationConfig
    found: StoredLayers

    @property
    def description(self) -> str:
        return self.declared.description

    @property
    def has_float8(self) -> bool:
        return self.declared.has_float8

    def scheme(self, name: str) -> LinearScheme:
        return self.plain if self._is_plain(name) else self.declared.scheme(name)

    def layout(self, name: str) -> Layout | None:
        return None if self._is_plain(name) else self.declared.layout(name)

    def head_scheme(self, name: str) -> LinearScheme:
        if self._is_plain(name):
            return self.plain
        declared = self.declared.head_scheme(name)
        is_missed = declared == self.plain and name in self.found.quantized_ends
        return self.declared.scheme(name) if is_missed else declared

    def embedding_scheme(self, name: str) -> LinearScheme:
        return self.plain if self._is_plain(name) else self.declared.embedding_scheme(name)

    def _is_plain(self, name: str) -> bool:
        """Whether the files have values of a layer; without a head, their names lack the first part."""
        return self._has_values(name) or self._has_values(name.partition(".")[2])

    def _has_values(self, name: str) -> bool:
        """Whether the files have values under this name; of a stack, also of experts that have layers of their own."""
        module, _, own = name.rpartition(".")
        layer = module if own == "weight" else name
        return layer in self.found.unquantized or (module.endswith(".experts") and module in self.found.unquantized)
