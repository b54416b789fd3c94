"""Which scheme each linear layer of a model has."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.quantization.float8 import Float8Scheme, Source
from octavo.quantization.float8_layout import ALL, Float8Layout
from octavo.quantization.grouped_weight import ExpertForm, Layout
from octavo.quantization.scheme import LinearScheme, PlainScheme
from octavo.quantization.stored import (
    ExpandedScheme,
    Int8Scheme,
    PackedScheme,
    RepackedScheme,
    StoredScheme,
    block_format,
)

SOURCES: dict[tuple[int, int], Source] = {(1, ALL): "channel", (ALL, ALL): "tensor"}
"""Blocks of float8 weights with a scale per output, or one for all."""


@dataclass(frozen=True, slots=True)
class SchemeOptions:
    """What schemes need to know of the device and the engine.

    Attributes:
        has_float8: whether it multiplies float8 values.
        deterministic: a row's bits must not depend on the other rows.
        has_blocks: whether it multiplies blocks of integers, with activations rounded to 8 bits.
        expands: whether integers are dequantised as they are loaded, so that their exact values are used.
        has_groups: whether it has kernels that unpack small numbers.
        packs_gguf: whether such kernels are to unpack a GGUF file's layers, which otherwise are dequantised at load.
    """

    has_float8: bool = False
    deterministic: bool = False
    has_blocks: bool = False
    expands: bool = False
    has_groups: bool = False
    packs_gguf: bool = False

    @property
    def plain(self) -> PlainScheme:
        """The scheme of layers that are not quantised."""
        return PlainScheme(self.deterministic)

    def float8(self, layout: Float8Layout | None = None) -> LinearScheme:
        """The scheme of float8 layers with a scale per output; see :class:`Float8Scheme`.

        Args:
            layout: how a checkpoint has them, in one of :data:`SOURCES`; None for weights that are rounded as they are
                loaded.
        """
        # Libraries choose kernels for float8 by the number of rows, so a row's bits may depend on it.
        is_native = self.has_float8 and not self.deterministic
        if layout is None:
            return Float8Scheme("plain", is_native, self.deterministic)
        if self.has_blocks:
            return self.stored(layout)
        names = layout.weight_name, layout.scale_name
        return Float8Scheme(SOURCES[layout.block], is_native, self.deterministic, *names)

    def stored(self, layout: Layout) -> StoredScheme:
        """The scheme of layers that a checkpoint has in a layout."""
        expanded = ExpandedScheme(layout, self.plain)
        if layout.form is None or self.expands:
            return expanded
        if layout.form.kind == "float8" and not (self.has_float8 or self.has_blocks):
            return expanded
        if layout.form.table is not None and not (self.has_groups or self.has_blocks):
            return expanded
        if layout.form.rounds_inputs:
            return Int8Scheme(layout, self.plain, self.has_blocks)
        if self.has_blocks:  # such a device is faster with values of the compute type than with other integers
            return RepackedScheme(layout, self.plain) if block_format(layout.form) else expanded
        return PackedScheme(layout, self.plain)


@dataclass(frozen=True, slots=True)
class QuantizationConfig(ABC):
    """How a model's linear layers are quantised.

    Attributes:
        plain: the scheme of layers that are not quantised.
    """

    plain: PlainScheme

    @property
    @abstractmethod
    def description(self) -> str:
        """The method in a few words, for the plan; empty if nothing is quantised."""

    @abstractmethod
    def scheme(self, name: str) -> LinearScheme:
        """The scheme of the checkpoint's layer of this full name."""

    def layout(self, name: str) -> Layout | None:
        """How the checkpoint stores a layer that has tensors of its own; None for one tensor of values.

        Experts, which are stored together, are read so.
        """
        return None

    def expert_form(self, names: Iterable[str]) -> ExpertForm | None:
        """How the device keeps experts; None for the compute type.

        Args:
            names: of their layers, which are kept alike.
        """
        forms = {self.scheme(name).expert_form for name in names}
        return forms.pop() if len(forms) == 1 else None

    @property
    def has_float8(self) -> bool:
        """Whether there are weights of float8."""
        return False

    def head_scheme(self, name: str) -> LinearScheme:
        """The scheme of the language-model head; plain unless a subclass knows better."""
        return self.plain

    def embedding_scheme(self, name: str) -> LinearScheme:
        """The scheme of a token embedding, if rows can be read from it; plain unless a subclass knows better."""
        return self.plain


@dataclass(frozen=True, slots=True)
class Unquantized(QuantizationConfig):
    """All weights in the compute type."""

    plain: PlainScheme = field(default_factory=PlainScheme)

    @property
    def description(self) -> str:
        return ""

    def scheme(self, name: str) -> LinearScheme:
        return self.plain
