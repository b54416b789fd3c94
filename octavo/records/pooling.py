"""Pooling: parameters of requests, the model's specification, and result data."""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.errors import InvalidRequestError

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
SequencePooling = Literal["CLS", "LAST", "MEAN", "SPLADE"]
Activation = Literal["identity", "sigmoid", "softmax", "tanh", "relu", "gelu"]

TASKS: tuple[PoolingTask, ...] = ("embed", "classify", "token_embed", "token_classify")
MAX_DIMENSIONS = 1 << 20


class PoolingParams(msgspec.Struct, omit_defaults=True):
    """Parameters of one pooling request, with vLLM's names and defaults; checked at construction.

    Attributes:
        use_activation: apply the final function (normalisation for embeddings, probabilities for classes); None uses
            the model's default.
        dimensions: number of leading dimensions of an embedding to keep, for models trained for it (Matryoshka,
            arXiv:2205.13147).
        task: the pooling task; None uses the default of the call or the model.
        skip_reading_prefix_cache: compute the whole prompt even if part of it is in the cache.

    Raises:
        InvalidRequestError: names the field that is out of range.
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
    """A float32 array in the form that is sent between processes.

    Attributes:
        shape: such as ``[dimensions]``, or ``[tokens, dimensions]``.
        data: the values in row-major order and native byte order.
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
    """The pooling part of an engine request, with all defaults resolved.

    Attributes:
        use_activation: apply the final function.
        dimensions: number of leading dimensions of an embedding to keep; None for all.
        segment_start: index of the first token of a pair's second text; None without one.
        query: ``[tokens, dimensions]`` token embeddings of a query; the result is then the score of the request's own
            token embeddings against it (MaxSim, arXiv:2004.12832).
    """

    task: PoolingTask
    use_activation: bool = True
    dimensions: int | None = None
    segment_start: int | None = None
    query: PooledData | None = None


class NormSpec(msgspec.Struct, frozen=True):
    """A layer norm.

    Attributes:
        name: its name in the checkpoint.
    """

    name: str
    eps: float
    bias: bool


class HeadRows(msgspec.Struct, frozen=True):
    """Rows of a language-model head that a classifier is made of.

    Attributes:
        tokens: their token ids, one for each class.
        is_difference: there are two tokens and one class, whose row is the second's less the first's; its sigmoid is
            the second's share of a softmax over both.
    """

    tokens: list[int]
    vocab_size: int
    is_difference: bool = False

    @property
    def num_outputs(self) -> int:
        """Number of classes."""
        return 1 if self.is_difference else len(self.tokens)


class DenseSpec(msgspec.Struct, frozen=True):
    """A linear layer between pooling and the final function.

    Attributes:
        folder: subfolder of the model with its weights; empty if they are in the model's own files.
        name: the layer's name in its checkpoint.
        activation: applied to its outputs.
        norm: applied after that; None for none.
        bias_name: the bias's name in the checkpoint, if it is not beside the weight.
        head_rows: if the layer is made of rows of the one called ``name``; None if it is stored itself.
    """

    folder: str
    name: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation
    norm: NormSpec | None = None
    bias_name: str = ""
    head_rows: HeadRows | None = None


class PoolingSpec(msgspec.Struct, frozen=True):
    """The pooling tasks that a model supports, and how hidden states become vectors.

    Attributes:
        tasks: supported tasks; the first is the default.
        pooling: which hidden states are used: the first token's, the last token's, or the mean of all; or, for each
            entry of the vocabulary, the largest of its weights over all tokens (SPLADE, arXiv:2109.10086).
        is_encoder: attention is bidirectional, so there is no cache, and prompts are not split into chunks.
        hidden_size: size of a hidden state.
        dense: layers applied to pooled states, in order.
        normalize: embeddings are normalised to length 1.
        num_labels: number of classes; 0 for models that do not classify.
        labels: names of the classes, by index; may be shorter.
        activation: turns class logits into probabilities, after ``logit_mean`` is subtracted from them and they are
            divided by ``logit_sigma``.
        dimensions: sizes to which embeddings may be cut; None for any, an empty list for none.
        step_tag_id: classes of tokens are given for the tokens with this id only, those that end a step of reasoning;
            None for all tokens.
        returned_token_ids: indices of the classes that are given; empty for all.
        max_length: maximum text length in tokens; None is the number of positions.
        prompts: name → text to put in front of inputs of that kind, from the model's files.
        pair_template: Jinja template of a prompt with a query and a document, messages of these roles; empty if they
            are framed as the tokenizer does.
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
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    dimensions: list[int] | None = []
    step_tag_id: int | None = None
    returned_token_ids: list[int] = []
    max_length: int | None = None
    prompts: dict[str, str] = {}
    pair_template: str = ""

    @property
    def output_size(self) -> int:
        """Size of an embedding, or number of classes."""
        return self.dense[-1].out_features if self.dense else self.hidden_size

    def needs_all_tokens(self, task: PoolingTask) -> bool:
        """Whether hidden states other than the last token's are needed, so that the prefix cache cannot be used."""
        return self.pooling != "LAST" or task.startswith("token_")
