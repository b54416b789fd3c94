"""A running engine's settings under vLLM's names, read-only: for logits processors and other code that reads them."""

from dataclasses import dataclass
from typing import Protocol, Self

from octavo.config.engine_config import EngineConfig
from octavo.records import EngineInfo, PoolingSpec


class EngineArguments(Protocol):
    """Whatever an engine's settings can be made from, such as :class:`octavo.compat.engine_args.EngineArgs`."""

    def create_engine_config(self) -> EngineConfig:
        """The settings, checked."""
        ...


@dataclass(frozen=True, slots=True)
class VllmModelConfig:
    """Which model, and its limits.

    Attributes:
        max_model_len: longest sequence, in tokens.
        vocab_size: number of tokens in the vocabulary.
        runner_type: ``generate`` or ``pooling``.
        embedding_size: numbers in an embedding, or classes; 0 of a generative model.
    """

    model: str
    tokenizer: str
    skip_tokenizer_init: bool
    max_model_len: int
    vocab_size: int
    max_logprobs: int
    seed: int
    runner_type: str
    embedding_size: int

    def get_vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.vocab_size


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The key/value cache."""

    block_size: int
    num_gpu_blocks: int
    gpu_memory_utilization: float
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a step may hold."""

    max_num_seqs: int
    policy: str


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How many devices share the model."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    world_size: int = 1
    rank: int = 0


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """All of it; what Octavo has no counterpart for is None."""

    model_config: VllmModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    speculative_config: None = None
    lora_config: None = None

    @classmethod
    def of(
        cls,
        settings: EngineConfig,
        *,
        max_model_len: int,
        vocab_size: int,
        max_num_seqs: int,
        block_size: int,
        num_blocks: int,
        enable_prefix_caching: bool,
        pooling: PoolingSpec | None,
    ) -> Self:
        """From an engine's settings and what was decided when it started."""
        model, cache, scheduler = settings.model, settings.cache, settings.scheduler
        size = settings.device.tensor_parallel_size
        return cls(
            VllmModelConfig(
                model=model.model,
                tokenizer=model.tokenizer or model.model,
                skip_tokenizer_init=model.skip_tokenizer_init,
                max_model_len=max_model_len,
                vocab_size=vocab_size,
                max_logprobs=model.max_logprobs,
                seed=model.seed,
                runner_type="generate" if pooling is None else "pooling",
                embedding_size=0 if pooling is None else pooling.output_size,
            ),
            CacheConfig(block_size, num_blocks, cache.gpu_memory_utilization, enable_prefix_caching),
            SchedulerConfig(max_num_seqs, scheduler.scheduling_policy),
            ParallelConfig(size, world_size=size),
        )

    @classmethod
    def of_engine(cls, settings: EngineConfig, info: EngineInfo) -> Self:
        """From an engine's settings and its description."""
        return cls.of(
            settings,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            max_num_seqs=info.max_num_seqs,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            enable_prefix_caching=info.supports_prefix_caching,
            pooling=info.pooling,
        )
