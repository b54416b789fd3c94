"""The token embedding, the position embedding and the language-model head."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from octavo import kernels
from octavo.errors import ConfigError
from octavo.kernels import LinearOp, rows_of
from octavo.kernels.basic import soft_cap
from octavo.kernels.linear import RoundedRows
from octavo.layers.build import Build
from octavo.layers.linear import Inputs, Linear
from octavo.parallel import ONE_DEVICE, TensorParallel
from octavo.quantization.scheme import LinearScheme, LinearWeights, PlainScheme
from octavo.quantization.slot import WeightPart, WeightSlot
from octavo.quantization.stored import ExpandedScheme


class Embedding(LinearWeights):
    """Maps token ids to vectors: the rows of a weight that may be stored like a linear layer's.

    Args:
        scheme: how the weight is stored, if rows can be read from that; else, and by default, as in the checkpoint.
        scale: factor on every vector, rounded to the compute type first (as Gemma was trained).
        given_scale: factor on vectors that are given in place of tokens.
        tensor_parallel: each device has the vectors of some tokens.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        scheme: LinearScheme | None = None,
        scale: float | None = None,
        given_scale: float | None = None,
        tensor_parallel: TensorParallel = ONE_DEVICE,
    ) -> None:
        self._tokens, num_rows = tensor_parallel.share_of_vocabulary(vocab_size)
        super().__init__(hidden_size, num_rows)
        self._tensor_parallel = tensor_parallel
        self._shape = vocab_size, hidden_size
        can_read = scheme is not None and (
            scheme.has_values or (scheme.has_rows and scheme.fits(hidden_size, [num_rows]))
        )
        self.scheme = scheme if scheme is not None and can_read else PlainScheme()
        self._create_weight()
        self.scale = None if scale is None else float(torch.tensor(scale, device="cpu").item())
        self.given_scale = given_scale
        self.is_lent = False
        self._packed: LinearOp | None = None  # a GEMM that has the rows: the head's, or one of the scheme
        self._replaced: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def part(self) -> WeightPart:
        """What of the checkpoint's table is stored."""
        return _part_of_vocabulary(self._tensor_parallel, *self._shape)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        if self.is_lent:
            return
        if self._packed is not None and not self.has_weight:
            if self._packed.memory is None:
                self._create_weight()
            else:
                self.weight = nn.Parameter(self._packed.memory, requires_grad=False)
            self._packed = None
        for name, slot in self.scheme.slots(self, self.part):
            yield f"{path}.{name}", slot

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """See :class:`octavo.layers.weights.FitsForms`: configurations seldom say that embeddings are not quantised."""
        if isinstance(self.scheme, ExpandedScheme) and not self.scheme.layout.is_found(path, has):
            self.scheme = self.scheme.plain

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        if self.scheme.has_rows and self.has_weight and self._packed is None:
            self._packed, _ = self.scheme.make_gemm(self)

    def lend(self) -> None:
        """Leave the weight to the head, which calls :meth:`read_from` once it has it."""
        self.is_lent = True
        for name, parameter in list(self.named_parameters(recurse=False)):
            self.register_parameter(name, nn.Parameter(parameter.new_empty(0), requires_grad=False))

    def take_back(self) -> None:
        """Have a weight of its own again, before anything is loaded."""
        if self.is_lent:
            self.is_lent = False
            self._create_weight()

    def read_from(self, packed: LinearOp) -> None:
        """Read the head's weight from now on, and free the own one, which is equal."""
        self._packed = packed
        self.free_weight()

    @property
    def given_places(self) -> torch.Tensor | None:
        """The places that :meth:`replacing` fills, ``[n]``; None outside of its context."""
        return None if self._replaced is None else self._replaced[0]

    def _create_weight(self) -> None:
        self.scheme.create(self, bias=False)
        if not self.scheme.has_rows:
            self.weight.data[len(self._tokens) :].zero_()

    @contextmanager
    def replacing(self, places: torch.Tensor, vectors: torch.Tensor) -> Iterator[None]:
        """A context that replaces the output at ``places``, ``[n]``, by ``vectors``, ``[n, hidden]``."""
        self._replaced = places, vectors if self.given_scale is None else vectors * self.given_scale
        try:
            yield
        finally:
            self._replaced = None

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """``[T]`` int → ``[T, hidden]``."""
        is_whole = self._tensor_parallel.size == 1
        vectors = self._rows(token_ids) if is_whole else self._look_up(token_ids)
        vectors = vectors if self.scale is None else vectors * self.scale
        return vectors if self._replaced is None else vectors.index_copy(0, *self._replaced)

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        return kernels.gather_rows(self.weight, index) if self._packed is None else self._packed.rows(index)

    def _look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The sum over the devices, of which only one has a token's vector."""
        is_elsewhere = (token_ids < self._tokens.start) | (token_ids >= self._tokens.stop)
        own = (token_ids - self._tokens.start).masked_fill_(is_elsewhere, 0)
        return self._tensor_parallel.all_reduce(self._rows(own).masked_fill_(is_elsewhere[:, None], 0))


class PositionEmbedding(nn.Module):
    """Learned vectors of absolute positions.

    Args:
        num_positions: positions that have a vector.
        max_positions: maximum sequence length in tokens.
        offset: rows of the checkpoint's table before the first position's.

    Raises:
        ConfigError: sequences may be longer than there are positions.
    """

    def __init__(self, num_positions: int, hidden_size: int, max_positions: int, *, offset: int = 0) -> None:
        super().__init__()
        if max_positions > num_positions:
            raise ConfigError(
                f"max_model_len is {max_positions}, but the model has learned vectors of {num_positions} positions."
            )
        self.weight = nn.Parameter(torch.empty(num_positions, hidden_size), requires_grad=False)
        self._offset = offset

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        num_positions, hidden_size = self.weight.shape
        end = self._offset + num_positions
        source = (slice(self._offset, end),) if self._offset else ()
        yield f"{path}.weight", WeightSlot(self.weight.data, ((end, hidden_size),), source)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """``[T]`` int64 → ``[T, hidden]``."""
        return kernels.gather_rows(self.weight, positions)


class Head(Linear):
    """Logits over the vocabulary, ``[N, hidden] → [N, vocab]``, the same on all devices.

    Args:
        tied: the embedding whose weight is shared; the checkpoint then has no separate head.
        tied_name: the embedding's name in the checkpoint.
        softcap: logits become ``c · tanh(logits / c)``.
        scale: factor on logits, before the cap.
        bias: whether a bias is added to the logits; the checkpoint has it beside the head, even if the head is tied.

    Attributes:
        is_normalized: whether each row of the checkpoint's weight is divided by its length.
    """

    is_normalized = False
    _tied: Embedding | None

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        build: Build,
        *,
        tied: Embedding | None = None,
        tied_name: str = "model.embed_tokens",
        bias: bool = False,
        softcap: float | None = None,
        scale: float | None = None,
    ) -> None:
        name, tp = "lm_head" if tied is None else tied_name, build.tensor_parallel
        quantization = build.quantization
        scheme = quantization.head_scheme(build.names.of_module(f"{build.prefix}{name}"))
        part = _part_of_vocabulary(tp, vocab_size, hidden_size)
        num_tokens = part.outputs.stop
        if tied is not None and not scheme.has_rows:
            scheme = quantization.plain
        elif not scheme.fits(hidden_size, [num_tokens]):
            scheme = scheme.fallback(quantization.plain)
        if tied is not None and scheme.has_rows:
            tied.lend()
        super().__init__(hidden_size, tp.share_of_vocabulary(vocab_size)[1], [(name, part)], scheme, bias=bias)
        self.softcap = softcap
        self.scale = scale
        self.keep_weight = tied is not None and not tied.is_lent
        object.__setattr__(self, "_tied", tied)  # not a submodule: its weight is the checkpoint's only entry
        self._tensor_parallel = tp
        self._vocab_size = vocab_size
        self._part = part
        if scheme is quantization.plain:
            self.weight.data[part.outputs.stop :].zero_()
        if self.bias is not None:
            self.bias.data[part.outputs.stop :].zero_()
        if self.keep_weight and tied is not None:
            # Register the parameter in the embedding only: a second name would look like a second checkpoint entry.
            del self.weight
            object.__setattr__(self, "weight", tied.weight)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """The head's slots; a tied embedding has that of the weight."""
        if self.keep_weight:
            if self.bias is not None:
                yield f"{path}.bias", self._part.bias_slot(self.bias.data[self._part.outputs])
            return
        for name, slot in super().weight_slots(path):
            if name.endswith(".bias"):
                yield f"{path}.bias", slot
            else:
                yield name, replace(slot, transform=_normalized(slot.transform)) if self.is_normalized else slot

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        if self._tied is not None and self._tied.is_lent:
            super().finish_weights()
            assert self._gemm is not None, "its weight is there"
            self._tied.read_from(self._gemm)
            return
        if self._tied is not None:
            object.__setattr__(self, "weight", self._tied.weight)
        super().finish_weights()
        if self._tied is not None and self.has_weight and self.packed is not None and self.packed.has_rows:
            self._tied.read_from(self.packed)
            object.__setattr__(self, "weight", self._tied.weight)

    def forward(self, x: Inputs, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[N, hidden] → [N, vocab]``, into ``out`` if it is given, else in float32 where the GEMM has that."""
        assert not isinstance(x, RoundedRows), "a gate's outputs have another reader"
        x = rows_of(x)
        is_whole = self._tensor_parallel.size == 1
        own = out if is_whole else None
        if own is None and self._gemm is not None and self._gemm.widens:
            own = x.new_empty(len(x), self.out_features, dtype=torch.float32)
        logits = self.multiply(x, own)
        logits = logits if is_whole else self._gather(logits, out)
        if self.scale is not None:
            logits.mul_(self.scale)
        return logits if self.softcap is None else soft_cap(logits, self.softcap)

    def _gather(self, logits: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """The logits of all devices, ``[N, rows of the vocabulary] → [N, vocab]``, without those of padding."""
        gathered = self._tensor_parallel.all_gather(logits).transpose(0, 1).flatten(1)[:, : self._vocab_size]
        return gathered.contiguous() if out is None else out.copy_(gathered)


def _part_of_vocabulary(tensor_parallel: TensorParallel, vocab_size: int, hidden_size: int) -> WeightPart:
    tokens, _ = tensor_parallel.share_of_vocabulary(vocab_size)
    source = (slice(tokens.start, tokens.stop),) if tensor_parallel.size > 1 else ()
    return WeightPart(slice(0, len(tokens)), (vocab_size, hidden_size), source)


def _normalized(transform: Callable[[torch.Tensor], torch.Tensor] | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Divides rows by their length, before another conversion."""

    def normalize(rows: torch.Tensor) -> torch.Tensor:
        rows = F.normalize(rows.float())
        return rows if transform is None else transform(rows)

    return normalize
