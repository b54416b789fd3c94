"""Results of pooling requests, with vLLM's names."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # importing torch takes a second, and the API process does not need it
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
        """A copy as a tensor."""
        import torch

        return torch.from_numpy(self.array.copy())


@dataclass(slots=True)
class EmbeddingOutput:
    """A text's embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Number of dimensions."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """Probabilities of the classes, or logits if the activation is turned off."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """The score of a pair of texts."""

    score: float


Output = TypeVar("Output", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Output]):
    """One pooling request and its result.

    Attributes:
        num_cached_tokens: prompt tokens that came from the prefix cache.
        error: why there is no result; None if there is one.
        is_refused: whether the error is the request's fault, not the engine's.
    """

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
    error: str | None = field(default=None, kw_only=True)
    is_refused: bool = field(default=False, kw_only=True)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """An embedding request and its result."""

    __slots__ = ()


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A classification request and its result."""

    __slots__ = ()


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A score request and its result."""

    __slots__ = ()
