"""Configurations of checkpoints whose layers have tensors of their own; a format says which layout a layer has."""

from abc import abstractmethod
from dataclasses import dataclass

from octavo.hub.config_values import ConfigValues
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.scheme import LinearScheme

_MAX_GROUP = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredConfig(QuantizationConfig):
    """Layers by their layout.

    Attributes:
        options: what their schemes need to know of the device.
    """

    options: SchemeOptions

    @property
    @abstractmethod
    def usual(self) -> Layout:
        """The layout of most layers."""

    @property
    def description(self) -> str:
        values = f": {self.usual.form}" if self.usual.form else ""
        return f"{self.usual.name}{values}; {self.options.stored(self.usual).kept_as}"

    @abstractmethod
    def layout(self, name: str) -> Layout | None:
        """See :meth:`QuantizationConfig.layout`."""

    def scheme(self, name: str) -> LinearScheme:
        layout = self.layout(name)
        return self.plain if layout is None else self.options.stored(layout)


def group_size(values: ConfigValues) -> int:
    """The number of inputs that share a scale; -1 for all.

    Raises:
        UnsupportedModelError: it is no such number.
    """
    return -1 if values.get("group_size") == -1 else values.count("group_size", _MAX_GROUP)
