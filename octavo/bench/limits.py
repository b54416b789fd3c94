"""What a device allows: least seconds for a model's work, from bytes and operations over measured ceilings.

The formulas are explained in ``docs/performance.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.hub.model_config import ModelConfig
from octavo.planning.memory import parameters_read_per_token


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best a device was seen to do.

    Attributes:
        read_bandwidth: bytes a second read from its memory.
        matmul_rate: operations a second in large matrix products of the compute type, two a multiply-add.
    """

    read_bandwidth: float
    matmul_rate: float

    def seconds(self, num_bytes: float, num_operations: float) -> float:
        """Least time for work that overlaps reading and computing perfectly."""
        return max(num_bytes / self.read_bandwidth, num_operations / self.matmul_rate)


class ModelLimits:
    """Least seconds for parts of a dense decoder's work.

    Args:
        itemsize: bytes of a weight and of a cached value.
    """

    def __init__(self, config: ModelConfig, itemsize: int, ceilings: Ceilings) -> None:
        self._ceilings = ceilings
        self._itemsize = itemsize
        self._head_parameters = config.vocab_size * config.hidden_size
        self._layer_parameters = parameters_read_per_token(config) - self._head_parameters
        window = config.sliding_window
        self._windows = [window if kind == "sliding_attention" else None for kind in config.layer_types]
        # A query meets a key in a product with it and one with its value.
        self._pair_operations = 4 * config.num_heads * config.head_dim
        self._key_bytes = 2 * config.num_kv_heads * config.head_dim * itemsize

    def decode_step(self, contexts: Sequence[int]) -> float:
        """One step of one token a request.

        Args:
            contexts: tokens that each request's query sees, itself included.
        """
        num_rows = len(contexts)
        num_keys = sum(self._num_visible(context) for context in contexts)
        return (
            self._products(self._layer_parameters, num_rows, 1)
            + self._products(self._head_parameters, num_rows, 1)
            + self._ceilings.seconds(num_keys * self._key_bytes, num_keys * self._pair_operations)
        )

    def prefill(self, input_lens: Sequence[int]) -> float:
        """Prompts computed from nothing up to their first new token."""
        return self.generate(input_lens, [1] * len(input_lens))

    def generate(self, input_lens: Sequence[int], output_lens: Sequence[int]) -> float:
        """Requests that are all there at the start, in whatever steps serve them best."""
        num_steps = max(output_lens)
        num_tokens = sum(input_lens) + sum(output_lens) - len(output_lens)
        pairs = sum(self._num_pairs(length) for length in input_lens)
        keys = sum(
            self._num_visible(context)
            for input_len, output_len in zip(input_lens, output_lens, strict=True)
            for context in range(input_len + 1, input_len + output_len)
        )
        return (
            self._products(self._layer_parameters, num_tokens, num_steps)
            + self._products(self._head_parameters, sum(output_lens), num_steps)
            + self._ceilings.seconds(0, pairs * self._pair_operations)
            + self._ceilings.seconds(keys * self._key_bytes, keys * self._pair_operations)
        )

    def _products(self, num_parameters: int, num_rows: int, num_steps: int) -> float:
        """Products of rows with weights that every step reads once."""
        return self._ceilings.seconds(num_steps * num_parameters * self._itemsize, 2 * num_parameters * num_rows)

    def _num_visible(self, context: int) -> int:
        """Keys that a query sees, over all layers."""
        return sum(context if window is None else min(context, window) for window in self._windows)

    def _num_pairs(self, length: int) -> int:
        """Queries and keys of a prompt that meet, over all layers."""
        return sum(_causal_pairs(length, window) for window in self._windows)


def _causal_pairs(length: int, window: int | None) -> int:
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def item_bytes(dtype: str) -> int:
    """Bytes of a number of a type by torch's name."""
    itemsize: int = getattr(torch, dtype).itemsize
    return itemsize
