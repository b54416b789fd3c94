"""Construction parameters shared by all layers of a model."""

from dataclasses import dataclass, field

from octavo.quantization.scheme import LinearScheme, PlainScheme


@dataclass(frozen=True, slots=True)
class Build:
    """Parameters of a whole model. Type and device are torch's defaults at construction.

    Attributes:
        scheme: storage format of linear layers' weights.
    """

    scheme: LinearScheme = field(default_factory=PlainScheme)
