"""What a user gets back from a pooling request, with vLLM's names."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # only a name for readers of types: torch takes a second to import, and servers do without
    import torch


@dataclass(slots=True, eq=False)
class PoolingOutput:
    """The vector or the vectors.

    Attributes:
        array: ``[dimensions]``, ``[classes]`` or ``[tokens, dimensions]``, float32, read-only.
    """

    array: NDArray[np.float32]

    @property
    def data(self) -> "torch.Tensor":
        """The same as a tensor of its own."""
        import torch

        return torch.from_numpy(self.array.copy())


@dataclass(slots=True)
class EmbeddingOutput:
    """A text's embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """Probabilities of the classes, or logits if no activation was wanted."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """How well two texts match."""

    score: float


Output = TypeVar("Output", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Output]):
    """Everything about one pooling request.

    Attributes:
        outputs: the answer.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        error: why there is no answer, a sentence; None if there is one.
        is_refused: whether the request is at fault, not the engine.
    """

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: str | None = field(default=None, kw_only=True)
    is_refused: bool = field(default=False, kw_only=True)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A text's embedding, with its request."""

    __slots__ = ()


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A text's classes, with its request."""

    __slots__ = ()


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """How well two texts match, with the request."""

    __slots__ = ()
