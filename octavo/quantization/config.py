"""Which scheme each linear layer of a model has."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.errors import UnsupportedModelError
from octavo.quantization.scheme import LinearScheme, PlainScheme


@dataclass(frozen=True, slots=True)
class QuantizationConfig(ABC):
    """How a model's linear layers are quantised.

    Attributes:
        plain: the scheme of layers that are not quantised.
    """

    plain: PlainScheme = field(default_factory=PlainScheme)

    @abstractmethod
    def scheme(self, name: str) -> LinearScheme:
        """The scheme of the checkpoint's layer of this full name."""

    def head_scheme(self, name: str) -> LinearScheme:
        """The scheme of the language-model head; plain unless a subclass knows better."""
        return self.plain

    def common_scheme(self, names: Sequence[str]) -> LinearScheme:
        """The scheme of several layers that are computed as one.

        Raises:
            UnsupportedModelError: they are not quantised alike.
        """
        schemes = [self.scheme(name) for name in names]
        for name, scheme in zip(names, schemes, strict=True):
            if scheme != schemes[0]:
                raise UnsupportedModelError(
                    f"{names[0]} is stored as {schemes[0]} and {name} as {scheme}, but the two are computed as one "
                    "layer; quantise them alike."
                )
        return schemes[0]


@dataclass(frozen=True, slots=True)
class Unquantized(QuantizationConfig):
    """All weights in the compute type."""

    def scheme(self, name: str) -> LinearScheme:
        return self.plain
