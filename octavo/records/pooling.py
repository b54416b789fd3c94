"""Requests that are answered with vectors: what a user asks for, what the model can do, what comes back."""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.errors import InvalidRequestError

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
SequencePooling = Literal["CLS", "LAST", "MEAN"]
Activation = Literal["identity", "sigmoid", "softmax", "tanh"]

TASKS: tuple[PoolingTask, ...] = ("embed", "classify", "token_embed", "token_classify")
MAX_DIMENSIONS = 1 << 20


class PoolingParams(msgspec.Struct, omit_defaults=True):
    """How to answer one pooling request, with vLLM's names and defaults; checked at construction.

    Attributes:
        use_activation: apply the model's last function (length 1 for embeddings, probabilities for classes);
            None does as the model's files say.
        dimensions: keep only so many leading numbers of an embedding, for models trained for that (Matryoshka,
            arXiv:2205.13147).
        task: what is wanted; None takes what the call or the model suggests.
        skip_reading_prefix_cache: compute the whole prompt although part of it is in the cache.

    Raises:
        InvalidRequestError: naming the field that is out of range.
    """

    use_activation: bool | None = None
    dimensions: int | None = None
    task: PoolingTask | None = None
    skip_reading_prefix_cache: bool | None = None

    def __post_init__(self) -> None:
        self.verify()

    def verify(self) -> None:
        """Check every field; raises as construction does."""
        if self.dimensions is not None and (
            isinstance(self.dimensions, bool)
            or not isinstance(self.dimensions, int)
            or not 1 <= self.dimensions <= MAX_DIMENSIONS
        ):
            raise InvalidRequestError(
                f"dimensions must be a whole number of at least 1, got {self.dimensions!r}.", "dimensions"
            )
        if self.task is not None and self.task not in TASKS:
            raise InvalidRequestError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}.", "task")
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if not isinstance(getattr(self, name), bool | None):
                raise InvalidRequestError(f"{name} must be true or false.", name)

    def clone(self) -> "PoolingParams":
        """A copy."""
        return msgspec.structs.replace(self)


class PooledData(msgspec.Struct, array_like=True):
    """An array of float32 as it travels between processes.

    Attributes:
        shape: such as ``[dimensions]``, or ``[tokens, dimensions]``.
        data: the numbers, row after row, in this machine's byte order.
    """

    shape: list[int]
    data: bytes

    @classmethod
    def of(cls, array: NDArray[np.floating[Any]]) -> "PooledData":
        """From an array of any floating type."""
        return cls(list(array.shape), np.ascontiguousarray(array, np.float32).tobytes())

    def array(self) -> NDArray[np.float32]:
        """The array, read-only."""
        return np.frombuffer(self.data, np.float32).reshape(self.shape)


class PoolingRequest(msgspec.Struct, omit_defaults=True):
    """The part of an engine request that makes it one for a vector; everything is resolved.

    Attributes:
        task: what is wanted.
        use_activation: apply the last function.
        dimensions: leading numbers of an embedding to keep; None is all.
        segment_start: first token of the second text of a pair; None without one.
        query: ``[tokens, dimensions]`` token embeddings of a query: the answer is then one number, how well the
            request's own token embeddings match it (MaxSim, arXiv:2004.12832).
    """

    task: PoolingTask
    use_activation: bool = True
    dimensions: int | None = None
    segment_start: int | None = None
    query: PooledData | None = None


class DenseSpec(msgspec.Struct, frozen=True):
    """A linear layer between pooling and the last function.

    Attributes:
        folder: subfolder of the model with its weights; empty where they lie among the model's own.
        name: of the layer in its checkpoint.
        activation: ``identity`` or ``tanh``.
    """

    folder: str
    name: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation


class PoolingSpec(msgspec.Struct, frozen=True):
    """What a model answers with vectors, and how hidden states become them.

    Attributes:
        tasks: what may be asked for; the first is what is meant if nothing is said.
        pooling: which hidden states of a sequence count: of the first token, of the last, or the mean of all.
        is_encoder: tokens see those behind them, too: no cache, and no prompt is cut into chunks.
        hidden_size: numbers in a hidden state.
        dense: layers applied to pooled states, in order.
        normalize: embeddings are brought to length 1.
        num_labels: classes; 0 for models that do not classify.
        labels: their names, by index; may be shorter.
        activation: from logits of classes to probabilities.
        dimensions: lengths to which embeddings may be cut; None is any, an empty list none.
        max_length: longest text the model is meant for, in tokens; None is as many as it has positions.
        prompts: name → text that the model wants before inputs of that kind, as its files say.
    """

    tasks: list[PoolingTask]
    pooling: SequencePooling
    is_encoder: bool
    hidden_size: int
    dense: list[DenseSpec] = []
    normalize: bool = False
    num_labels: int = 0
    labels: list[str] = []
    activation: Activation = "identity"
    dimensions: list[int] | None = []
    max_length: int | None = None
    prompts: dict[str, str] = {}

    @property
    def output_size(self) -> int:
        """Numbers in an embedding, or classes."""
        return self.dense[-1].out_features if self.dense else self.hidden_size

    def needs_all_tokens(self, task: PoolingTask) -> bool:
        """Whether an answer needs hidden states other than the last token's, so that none may come from the cache."""
        return self.pooling != "LAST" or task.startswith("token_")
