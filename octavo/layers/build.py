"""What every layer is told when a model is built."""

from dataclasses import dataclass, field

from octavo.quantization.scheme import LinearScheme, PlainScheme


@dataclass(frozen=True, slots=True)
class Build:
    """Choices that hold for a whole model. Type and device are torch's defaults at construction.

    Attributes:
        scheme: how linear layers keep their weights.
    """

    scheme: LinearScheme = field(default_factory=PlainScheme)
