"""The device's limit (roofline): minimum seconds for a model's work, from bytes, operations and measured ceilings.

The formulas are explained in ``docs/performance.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.hub.model_config import ModelConfig
from octavo.planning.memory import read_parameters


@dataclass(frozen=True, slots=True)
class Ceilings:
    """A device's measured ceilings.

    Attributes:
        read_bandwidth: bytes/s read from its memory.
        matmul_rate: FLOP/s of large GEMMs in the compute type that go on for long; a multiply-add counts as two.
        float8_rate: the same of float8 values; None where the device does not multiply them.
    """

    read_bandwidth: float
    matmul_rate: float
    float8_rate: float | None = None

    def seconds(self, num_bytes: float, num_operations: float, *, is_float8: bool = False) -> float:
        """Minimum time for work that overlaps reads and computation perfectly."""
        rate = self.float8_rate if is_float8 and self.float8_rate is not None else self.matmul_rate
        return max(num_bytes / self.read_bandwidth, num_operations / rate)


@dataclass(frozen=True, slots=True)
class StoredShares:
    """What a model's parts take in memory, relative to the compute type.

    Attributes:
        layers: weights outside experts and head.
        experts: of mixtures.
        head: or the token embedding, if that is the head.
        keys: cached keys and values.
        is_float8: whether the layers' GEMMs multiply float8 values.
    """

    layers: float = 1.0
    experts: float = 1.0
    head: float = 1.0
    keys: float = 1.0
    is_float8: bool = False


class ModelLimits:
    """Minimum seconds for parts of a decoder's work; tokens are taken to spread evenly over experts.

    Args:
        itemsize: bytes of a value of the compute type.
        stored: how weights, keys and values are stored; None for the compute type.
    """

    def __init__(
        self, config: ModelConfig, itemsize: int, ceilings: Ceilings, stored: StoredShares | None = None
    ) -> None:
        self._ceilings = ceilings
        self._stored = stored or StoredShares()
        self._itemsize = itemsize
        self._head_parameters = config.vocab_size * config.hidden_size
        num_common, self._routed = read_parameters(config)
        self._layer_parameters = num_common - self._head_parameters
        window = config.sliding_window
        self._windows = [window if kind == "sliding_attention" else None for kind in config.layer_types]
        # Per query and key: a dot product with the key, and a multiply-add with the value.
        self._pair_operations = 4 * config.num_heads * config.head_dim
        self._key_bytes = 2 * config.num_kv_heads * config.head_dim * itemsize * self._stored.keys

    def decode_step(self, contexts: Sequence[int]) -> float:
        """A decode step with one token per request.

        Args:
            contexts: tokens that each request's query attends to, itself included.
        """
        num_rows = len(contexts)
        num_keys = sum(self._num_visible(context) for context in contexts)
        return (
            self._layers(num_rows, 1)
            + self._head(num_rows, 1)
            + self._ceilings.seconds(num_keys * self._key_bytes, num_keys * self._pair_operations)
        )

    def prefill(self, input_lens: Sequence[int]) -> float:
        """Prompts computed without a cached prefix, up to their first new token."""
        return self.generate(input_lens, [1] * len(input_lens))

    def generate(self, input_lens: Sequence[int], output_lens: Sequence[int]) -> float:
        """Requests that are all available at the start, in the best possible steps."""
        num_steps = max(output_lens)
        num_tokens = sum(input_lens) + sum(output_lens) - len(output_lens)
        pairs = sum(self._num_pairs(length) for length in input_lens)
        keys = sum(
            self._num_visible(context)
            for input_len, output_len in zip(input_lens, output_lens, strict=True)
            for context in range(input_len + 1, input_len + output_len)
        )
        return (
            self._layers(num_tokens, num_steps)
            + self._head(sum(output_lens), num_steps)
            + self._ceilings.seconds(0, pairs * self._pair_operations)
            + self._ceilings.seconds(keys * self._key_bytes, keys * self._pair_operations)
        )

    def _layers(self, num_rows: int, num_steps: int) -> float:
        """GEMMs of all layers."""
        num_read, num_used = self._layer_parameters * self._stored.layers, float(self._layer_parameters)
        if self._routed is not None:
            num_read += self._routed.num_read(num_rows / num_steps) * self._stored.experts
            num_used += self._routed.num_per_token
        num_bytes = num_steps * num_read * self._itemsize
        return self._ceilings.seconds(num_bytes, 2 * num_used * num_rows, is_float8=self._stored.is_float8)

    def _head(self, num_rows: int, num_steps: int) -> float:
        """The GEMM with the head, which every step reads once."""
        num_bytes = num_steps * self._head_parameters * self._stored.head * self._itemsize
        return self._ceilings.seconds(num_bytes, 2 * self._head_parameters * num_rows)

    def _num_visible(self, context: int) -> int:
        """Number of keys that a query attends to, over all layers."""
        return sum(context if window is None else min(context, window) for window in self._windows)

    def _num_pairs(self, length: int) -> int:
        """Number of query-key pairs of a prompt, over all layers."""
        return sum(_causal_pairs(length, window) for window in self._windows)


def _causal_pairs(length: int, window: int | None) -> int:
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def item_bytes(dtype: str) -> int:
    """Item size in bytes of a torch type, by name."""
    itemsize: int = getattr(torch, dtype).itemsize
    return itemsize
