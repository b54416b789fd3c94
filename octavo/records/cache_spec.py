"""How a layer remembers the tokens that it has seen: declared by the model, obeyed by cache, planning and kernels."""

from dataclasses import dataclass, field
from math import prod

_QUANTIZED = ("float8_e4m3fn", "float8_e5m2", "int8")
_ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2, **dict.fromkeys(_QUANTIZED, 1)}
_SCALE_BYTES = 4
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Full:
    """Keys and values of all tokens.

    Attributes:
        num_kv_heads, head_dim: key/value heads and their size.
        dtype: type by torch's name.
        has_scales: whether each key and each value of a head has a float32 scale, which lies in the block behind them.
    """

    num_kv_heads: int
    head_dim: int
    dtype: str
    has_scales: bool = field(default=False, kw_only=True)

    @property
    def run_bytes(self) -> int:
        """Bytes of one head's keys of one token; blocks begin at multiples of a block's run of them."""
        return self.head_dim * _ITEMSIZES[self.dtype]

    def block_bytes(self, block_size: int, num_places: int) -> int:
        """Bytes of one layer in a block of ``block_size`` tokens."""
        num_keys = block_size * 2 * self.num_kv_heads
        return _with_scales(num_keys * self.run_bytes, num_keys if self.has_scales else 0)

    @property
    def reach(self) -> int | None:
        """Number of last tokens whose blocks a query needs, its own included; None for all."""
        return None


@dataclass(frozen=True, slots=True)
class SlidingWindow(Full):
    """Keys and values of the last tokens.

    Attributes:
        window: number of tokens that a query attends to, itself included.
    """

    window: int

    @property
    def reach(self) -> int | None:
        """The window."""
        return self.window


@dataclass(frozen=True, slots=True)
class ChunkedLocal(Full):
    """Keys and values of the tokens since the beginning of a chunk (Llama 4).

    Attributes:
        chunk: tokens of a chunk; chunks begin at its multiples, and a query attends to its own.
    """

    chunk: int

    @property
    def reach(self) -> int | None:
        """A chunk, at most."""
        return self.chunk


@dataclass(frozen=True, slots=True)
class Latent:
    """One vector per token, from which all heads' keys and values follow (DeepSeek-V2, arXiv:2405.04434).

    Attributes:
        size: of the vector.
        dtype: type by torch's name.
        has_scales: whether each vector has a float32 scale, which lies in the block behind them.
    """

    size: int
    dtype: str
    has_scales: bool = field(default=False, kw_only=True)

    @property
    def run_bytes(self) -> int:
        """Bytes of one token."""
        return self.size * _ITEMSIZES[self.dtype]

    def block_bytes(self, block_size: int, num_places: int) -> int:
        """Bytes of one layer in a block of ``block_size`` tokens."""
        return _with_scales(block_size * self.run_bytes, block_size if self.has_scales else 0)

    @property
    def reach(self) -> int | None:
        """All tokens."""
        return None


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of a recurrent state.

    Attributes:
        shape: after one token.
        dtype: type by torch's name.
    """

    shape: tuple[int, ...]
    dtype: str

    def block_bytes(self, num_places: int) -> int:
        """Bytes of all places of a block."""
        return _aligned(num_places * prod(self.shape) * _ITEMSIZES[self.dtype])


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state: tensors of a fixed size that every token changes.

    The state after the token at position ``q`` lies in that token's block, at place ``q % num_places``; a block has a
    place for each token of a decoding row, drafts included. So rejected drafts need no repair, the next step reads the
    state of its last known token, and a complete block holds the state at its end: a snapshot that other requests
    continue from.

    Attributes:
        tensors: what the state consists of.
    """

    tensors: tuple[StateTensor, ...]

    def block_bytes(self, block_size: int, num_places: int) -> int:
        """Bytes of one layer in a block, whatever its number of tokens."""
        return sum(tensor.block_bytes(num_places) for tensor in self.tensors)

    @property
    def reach(self) -> int | None:
        """A token needs the block of the token before it."""
        return 2


@dataclass(frozen=True, slots=True)
class Shared:
    """The cache of an earlier layer, which this one reads in place of one of its own.

    A model declares it like any other kind. It takes no memory, so cache, planning and scheduler see the earlier layer
    alone; see :func:`octavo.models.base.cache_specs`.

    Attributes:
        of: the cache's name.
    """

    of: str


CacheSpec = Full | SlidingWindow | ChunkedLocal | Latent | State
"""The kinds that take memory."""


def is_quantized(spec: CacheSpec) -> bool:
    """Whether a cache holds keys and values in fewer bits than a compute type has."""
    return isinstance(spec, Full | Latent) and spec.dtype in _QUANTIZED


def scales_offset(num_bytes: int) -> int:
    """Where the scales of ``num_bytes`` of values lie, counted in bytes from the first value."""
    return _aligned(num_bytes)


def _with_scales(num_bytes: int, num_scales: int) -> int:
    """Bytes of values and of their scales; without scales there is no padding."""
    return scales_offset(num_bytes) + _aligned(num_scales * _SCALE_BYTES) if num_scales else num_bytes


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
