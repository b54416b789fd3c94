"""The plan: all settings as resolved at startup, each with its reason."""

from dataclasses import dataclass, field

from octavo.records.cache_spec import CacheSpec, ChunkedLocal, SlidingWindow, State, is_quantized


@dataclass(frozen=True, slots=True)
class Decision:
    """One resolved setting.

    Attributes:
        reason: why it has this value.
    """

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Caches of one kind that share one block table. In a block, they lie one behind the other.

    Attributes:
        layers: the caches' names.
        spec: what each of them is.
        block_size: tokens per block.
    """

    layers: tuple[str, ...]
    spec: CacheSpec
    block_size: int

    @property
    def window(self) -> int | None:
        """Number of tokens that a query attends to, itself included; None for all."""
        return self.spec.window if isinstance(self.spec, SlidingWindow) else None

    @property
    def signed_window(self) -> int | None:
        """The window as kernels take it: negative for chunks of so many tokens, within which queries attend."""
        return -self.spec.chunk if isinstance(self.spec, ChunkedLocal) else self.window

    def max_blocks(self, num_tokens: int, max_chunk: int) -> int:
        """Maximum number of blocks that a request of ``num_tokens`` tokens holds at once, given the longest chunk."""
        total = -(-num_tokens // self.block_size)
        if self.spec.reach is None:
            return total
        # What the chunk's first query reaches, the chunk, and partial blocks on either side.
        spanned = -(-(self.spec.reach - 1 + max_chunk) // self.block_size) + 1
        return min(spanned, total)

    def block_bytes(self, num_places: int) -> int:
        """Bytes of all its layers in a block."""
        return len(self.layers) * self.spec.block_bytes(self.block_size, num_places)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Memory of one purpose.

    Attributes:
        reason: how the size is derived.
    """

    name: str
    num_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NgramDrafts:
    """Drafts from the request's own text.

    Attributes:
        num_drafts: maximum number of drafts per request and step.
        min_length, max_length: number of last tokens to look for in the text before them.
    """

    num_drafts: int
    min_length: int
    max_length: int

    @property
    def description(self) -> str:
        """Where the drafts come from."""
        return f"ngrams of {self.min_length} to {self.max_length} last tokens"


@dataclass(frozen=True, slots=True)
class CapturedRouting:
    """Capture of the experts that tokens choose.

    Attributes:
        group: index of the cache group in whose blocks' order they are kept.
        num_layers, num_chosen: layers of the model, and experts that a token chooses in each.
    """

    group: int
    num_layers: int
    num_chosen: int

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes."""
        return 2 * self.num_layers * self.num_chosen


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Weights for one purpose that are stored alike.

    Attributes:
        purpose: such as ``attention``.
        format: their type, or format.
        num_bytes: in memory.
        num_read: bytes of them that a step for one token reads.
    """

    purpose: str
    format: str
    num_bytes: int
    num_read: int


MAX_BAD_WORD_TOKENS = 128
_NUM_RECENT_TOKENS = 256
"""Enough for the longest bad word behind the drafts of steps in flight."""
_MAX_NGRAM_TOKENS = 32_768


def recent_tokens(max_model_len: int, drafter: NgramDrafts | None) -> int:
    """Number of a request's last tokens that the device keeps, a power of two: drafts are looked for among them."""
    if drafter is None:
        return _NUM_RECENT_TOKENS
    return min(max(_NUM_RECENT_TOKENS, 1 << (max_model_len + drafter.num_drafts).bit_length()), _MAX_NGRAM_TOKENS)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the engine decides before it loads a model.

    Attributes:
        dtype: compute type by torch's name, such as ``bfloat16``.
        max_model_len: maximum sequence length in tokens.
        block_size: tokens per prefix hash; cache blocks have a multiple of it.
        block_bytes: size of a cache block.
        num_blocks: blocks in the pool, block 0 (never used) included.
        max_num_seqs, max_num_batched_tokens: maximum number of requests and tokens in a step.
        enable_prefix_caching, enable_chunked_prefill: as set.
        scheduling_policy: ``fcfs`` or ``priority``.
        max_num_scheduled_tokens: maximum number of tokens scheduled per step; None is ``max_num_batched_tokens``.
        max_num_mixed_tokens: maximum number of tokens scheduled in a step in which requests decode, so that these do
            not wait long for the prompts of others; None is as many as in other steps.
        num_exact_graphs: batch size up to which each size has a graph of its own, without padding.
        num_steps_ahead: steps that may be in flight before the oldest one's tokens are read.
        drafter: who drafts tokens; None without speculative decoding.
        decode_len: number of tokens up to which a row of a step counts as decoding: 1, and one more per draft if the
            kernels of decode attention take as many.
        routing: how the experts that tokens choose are captured; None if they are not.
        memory: parts of the device's memory.
        cache_tokens: tokens that fit into the cache if every layer keeps all of them.
        weights: what each device's weights take and what a token reads of them, the largest group first.
        decode_limit: tokens/s at batch 1 at the memory bandwidth limit.
    """

    dtype: str
    max_model_len: int
    block_size: int
    num_blocks: int
    block_bytes: int
    groups: tuple[CacheGroup, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    scheduling_policy: str
    num_steps_ahead: int
    drafter: NgramDrafts | None = None
    decode_len: int = 1
    max_num_scheduled_tokens: int | None = None
    max_num_mixed_tokens: int | None = None
    num_exact_graphs: int = 0
    routing: CapturedRouting | None = None
    memory: tuple[MemoryPart, ...] = ()
    cache_tokens: int = 0
    weights: tuple[WeightGroup, ...] = ()
    decode_limit: float = 0.0
    decisions: tuple[Decision, ...] = field(default=())

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens scheduled per step."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def num_drafts(self) -> int:
        """Maximum number of draft tokens per request and step."""
        return 0 if self.drafter is None else self.drafter.num_drafts

    @property
    def num_recent_tokens(self) -> int:
        """Number of a request's last tokens that the device keeps; see :func:`recent_tokens`."""
        return recent_tokens(self.max_model_len, self.drafter)

    @property
    def max_blocks_per_seq(self) -> int:
        """Number of entries in a block table."""
        return -(-self.max_model_len // min((group.block_size for group in self.groups), default=self.block_size))

    @property
    def has_foreign_bytes(self) -> bool:
        """Whether what one group leaves in a block may be NaN for another, as one of them is quantised.

        Kernels multiply what lies behind a request's last token by zero, and 0 · NaN is NaN.
        """
        layouts: set[object] = set()
        for group in self.groups:
            spec, size = group.spec, group.block_size
            if isinstance(spec, State):
                layouts.add(spec)
            else:
                layouts.add((size, spec.dtype, spec.run_bytes, spec.block_bytes(size, 1)))
        return len(layouts) > 1 and any(is_quantized(group.spec) for group in self.groups)

    @property
    def num_places(self) -> int:
        """Maximum number of tokens in a decoding row: the last known one and drafts."""
        return 1 + self.num_drafts

    def memory_of(self, name: str) -> int:
        """Bytes of the part with that name, 0 if there is none."""
        return sum(part.num_bytes for part in self.memory if part.name == name)
