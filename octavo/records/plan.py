"""What was decided at start: the settings in force, each with its reason."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Decision:
    """One setting as it will be used.

    Attributes:
        name: the setting.
        value: its value, as a person would write it.
        reason: why, in words.
    """

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table.

    A cache block has room for ``len(layers)`` layers (of the largest group); which physical tensor a layer uses is
    its position in this tuple.

    Attributes:
        layers: indices in the model.
        window: tokens that a query sees, itself included; None is all.
    """

    layers: tuple[int, ...]
    window: int | None


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Memory that one purpose takes.

    Attributes:
        reason: how the figure comes about.
    """

    name: str
    num_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the engine needs to know before it loads a model.

    Attributes:
        dtype: compute type by torch's name, such as ``bfloat16``.
        max_model_len: longest sequence, in tokens.
        block_size: tokens a cache block.
        num_blocks: blocks in the pool, block 0 (never used) included.
        groups: cache groups.
        max_num_seqs, max_num_batched_tokens: most requests and tokens that a step has room for.
        enable_prefix_caching, enable_chunked_prefill: as set.
        scheduling_policy: ``fcfs`` or ``priority``.
        max_num_scheduled_tokens: most tokens that the scheduler puts into a step; None is all that there is room for.
        num_exact_graphs: batches of up to so many decoding requests have a graph of their exact size, without padding.
        num_steps_ahead: steps that may be under way before the oldest one's tokens are read.
        memory: parts of the device's memory.
        cache_tokens: tokens that fit into the cache when every layer keeps all of them.
        decode_limit: tokens a second that reading the weights allows at batch 1.
        decisions: settings with reasons.
    """

    dtype: str
    max_model_len: int
    block_size: int
    num_blocks: int
    groups: tuple[CacheGroup, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    scheduling_policy: str
    num_steps_ahead: int
    max_num_scheduled_tokens: int | None = None
    num_exact_graphs: int = 0
    memory: tuple[MemoryPart, ...] = ()
    cache_tokens: int = 0
    decode_limit: float = 0.0
    decisions: tuple[Decision, ...] = field(default=())

    @property
    def token_budget(self) -> int:
        """Most tokens that the scheduler puts into a step."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def max_blocks_per_seq(self) -> int:
        """Entries in one block table."""
        return -(-self.max_model_len // self.block_size)

    def memory_of(self, name: str) -> int:
        """Bytes of the part of that name, 0 if there is none."""
        return sum(part.num_bytes for part in self.memory if part.name == name)
