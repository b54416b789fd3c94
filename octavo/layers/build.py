"""Construction parameters shared by all layers of a model, and the factory of linear layers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from octavo.errors import ConfigError
from octavo.layers.linear import Linear, PartedLinear, RowParallelLinear
from octavo.layers.weights import CheckpointNames
from octavo.parallel import ONE_DEVICE, Section, TensorParallel
from octavo.quantization.blocks import MADE_AT_LOAD
from octavo.quantization.cache_format import CacheFormat
from octavo.quantization.config import QuantizationConfig, Unquantized
from octavo.quantization.grouped_weight import BlockForm, ExpertForm, GroupedForm, Layout, PackedForms
from octavo.quantization.scheme import LinearScheme
from octavo.quantization.slot import SplitPairs, WeightPart
from octavo.records.experts import ExpertStorage, SeparateExperts, StackedExperts

Split = Literal["column", "row"]


@dataclass(frozen=True, slots=True)
class Build:
    """Parameters of a whole model, and where in it a module is. Type and device are torch's defaults at construction.

    Attributes:
        quantization: decides how each linear layer's weights are stored.
        prefix: the module's name, with a dot at its end; empty for the model itself.
        tensor_parallel: the part of the model to build.
        names: what checkpoints call the model's modules.
        is_transposed: whether checkpoints have weights of linear layers as ``[in, out]``.
        uniform_routing: whether tokens draw their experts evenly, whatever their scores.
        cache: how attention layers keep keys and values.
    """

    quantization: QuantizationConfig = field(default_factory=Unquantized)
    prefix: str = ""
    tensor_parallel: TensorParallel = ONE_DEVICE
    names: CheckpointNames = field(default_factory=CheckpointNames)
    is_transposed: bool = False
    uniform_routing: bool = False
    cache: CacheFormat = field(default_factory=CacheFormat)

    @property
    def name(self) -> str:
        """The module's name."""
        return self.prefix.removesuffix(".")

    def at(self, name: str) -> "Build":
        """The parameters for a module inside this one."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def embedding_scheme(self, name: str) -> LinearScheme:
        """How the embedding of this attribute's name is stored."""
        return self.quantization.embedding_scheme(self.names.of_module(f"{self.prefix}{name}"))

    def layout(self, path: str) -> Layout | None:
        """How checkpoints store a module's layer that is no layer of its own here, by its name within the model."""
        return self.quantization.layout(self.names.of(path))

    def expert_form(self, storage: ExpertStorage, num_experts: int) -> ExpertForm | None:
        """How the device keeps the experts of the module ``experts`` inside this one; None for the compute type."""
        up = [storage.gate_up] if isinstance(storage, StackedExperts) else [storage.gate, storage.up]
        down = [storage.down]
        if isinstance(storage, SeparateExperts):
            up, down = ([f"experts.{i}.{name}" for i in range(num_experts) for name in names] for names in (up, down))
        first, second = (
            self.quantization.expert_form(self.names.of(f"{self.prefix}{name}") for name in names)
            for names in (up, down)
        )
        if isinstance(first, BlockForm) and isinstance(second, BlockForm):
            form = BlockForm(first.gate_up, second.down)
            # Blocks of a checkpoint are those of one matrix, but for gpt-oss's.
            is_made = form.gate_up in MADE_AT_LOAD and form.down in MADE_AT_LOAD
            is_mxfp4 = isinstance(storage, StackedExperts) and storage.is_mxfp4
            return form if is_made or is_mxfp4 or isinstance(storage, SeparateExperts) else None
        if isinstance(storage, SeparateExperts) and isinstance(first, GroupedForm) and isinstance(second, GroupedForm):
            return first if first == second else PackedForms(first, second)
        return first if first == second else None

    def linear(
        self,
        name: str,
        in_features: int,
        out_parts: int | Mapping[str, int | Section] | Sequence[Section],
        *,
        bias: bool | Collection[str] = False,
        split: Split | None = None,
        head_size: int = 1,
        rows: torch.Tensor | None = None,
    ) -> Linear | PartedLinear:
        """A linear layer of these sizes in the whole model, stored as the checkpoint's layer of its name is quantised.

        Args:
            name: the layer's attribute name.
            out_parts: number of outputs; or the checkpoint's layers that are computed as one, which stand beside this
                one, with theirs or with a section of their own; or the sections of this layer's outputs.
            bias: whether the checkpoint's layers have biases, or which of those that are computed as one do.
            split: what several devices divide: ``column`` the outputs of each part, ``row`` the inputs, so that the
                results are added up. Without it, every device computes the whole layer.
            head_size: outputs are divided in units of so many; fewer units than devices are repeated.
            rows: for each output of one layer, which of the checkpoint's it is, ``[out]`` int64 on the CPU; None if
                they are the same.

        Raises:
            ConfigError: a size cannot be divided over the devices.
        """
        if isinstance(out_parts, Mapping):
            parts = {part: [_section(size, head_size)] for part, size in out_parts.items()}
        else:
            parts = {name: [_section(out_parts, head_size)] if isinstance(out_parts, int) else [*out_parts]}
        assert rows is None or len(parts) == 1, "the outputs of one layer are reordered"
        names = [self.names.of(f"{self.prefix}{part}") for part in parts]
        has_bias = {part: bias if isinstance(bias, bool) else part in bias for part in parts}
        schemes = [self.quantization.scheme(name) for name in names]
        is_mixed = len(set(schemes)) > 1 or len(set(has_bias.values())) > 1
        if len(parts) > 1 and (is_mixed or not schemes[0].may_merge):
            return PartedLinear(
                in_features,
                [
                    self.linear(part, in_features, sections, bias=has_bias[part], split=split, head_size=head_size)
                    for part, sections in parts.items()
                ],
            )
        scheme, is_biased = schemes[0], any(has_bias.values())
        tp = self.tensor_parallel
        split = split if tp.size > 1 else None
        inputs = tp.share(in_features, "inputs of a layer") if split == "row" else range(in_features)
        if not scheme.divides_inputs(inputs, in_features):
            raise ConfigError(
                f"tensor_parallel_size is {tp.size}, but {names[0]} is stored as {scheme}, which cannot be divided "
                f"into parts of {len(inputs)} inputs; choose another number of devices."
            )
        stored: list[tuple[str, WeightPart]] = []
        start = 0
        for part, sections in parts.items():
            pieces = self._pieces(sections, in_features, inputs, split, start)
            stored += [(part, piece if rows is None else _reordered(piece, rows)) for piece in pieces]
            start = stored[-1][1].outputs.stop
        if not scheme.fits(len(inputs), [part.outputs.stop - part.outputs.start for _, part in stored]):
            scheme = scheme.fallback(self.quantization.plain)
        if split == "row":
            return RowParallelLinear(len(inputs), start, stored, scheme, bias=is_biased, tensor_parallel=tp)
        return Linear(len(inputs), start, stored, scheme, bias=is_biased)

    def _pieces(
        self, sections: Sequence[Section], in_features: int, inputs: range, split: Split | None, start: int
    ) -> Iterator[WeightPart]:
        """What this device stores of a layer of the checkpoint, as outputs from ``start`` on."""
        size = sum(section.size for section in sections)
        if split != "column" and not any(section.interleaved for section in sections):
            sections = [Section(size)]
        dealt = self.tensor_parallel if split == "column" else ONE_DEVICE
        places = dealt.share_of_sections(sections, "outputs of a layer")
        for section, (place, outputs) in zip(sections, places, strict=True):
            is_whole = len(outputs) == size and len(inputs) == in_features
            yield WeightPart(
                slice(start + place.start, start + place.stop),
                (size, in_features),
                () if is_whole else (slice(outputs.start, outputs.stop), slice(inputs.start, inputs.stop)),
                has_bias=split != "row" or self.tensor_parallel.rank == 0,
                order=SplitPairs(section.unit, section.interleaved) if section.interleaved else None,
                is_transposed=self.is_transposed,
            )


def _section(size: int | Section, head_size: int) -> Section:
    return size if isinstance(size, Section) else Section(size, head_size)


def _reordered(piece: WeightPart, rows: torch.Tensor) -> WeightPart:
    """A piece of a layer whose outputs stand in another order in checkpoints."""
    outputs, inputs = piece.source or (slice(None), slice(None))
    return replace(piece, source=(rows[outputs], inputs))
