"""The helpers of vLLM's package that its tests of the server import, in Octavo's terms."""

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from benchmarks.vllm_tests import rules
from octavo.hub.load import load_model_config
from octavo.hub.source import find_files, resolve
from octavo.tokenization.load import load_tokenizer


class Answer(BaseModel):
    """A response whose fields are read by name."""

    model_config = ConfigDict(extra="allow")


class Usage(Answer):
    """The usage of a pooling response."""

    prompt_tokens: int
    total_tokens: int


class PoolingData(Answer):
    """One entry of a pooling response."""

    index: int
    object: str
    data: Any


class PoolingResponse(Answer):
    """The response of ``/pooling``."""

    id: str
    object: str
    created: int
    model: str
    data: list[PoolingData]
    usage: Usage


class EmbeddingData(Answer):
    """One entry of an embedding response."""

    index: int
    object: str
    embedding: list[float] | str


class EmbeddingResponse(PoolingResponse):
    """The response of ``/v1/embeddings``."""

    data: list[EmbeddingData]  # type: ignore[assignment]


class ClassificationData(Answer):
    """One entry of a classification response."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationResponse(PoolingResponse):
    """The response of ``/classify``."""

    data: list[ClassificationData]  # type: ignore[assignment]


class ScoreData(Answer):
    """One entry of a score response."""

    index: int
    object: str
    score: float


class ScoreResponse(PoolingResponse):
    """The response of ``/score``."""

    data: list[ScoreData]  # type: ignore[assignment]


class RerankDocument(Answer):
    """A document that was ranked."""

    text: str | None = None


class RerankResult(Answer):
    """One entry of a rerank response."""

    index: int
    document: RerankDocument
    relevance_score: float


class RerankResponse(Answer):
    """The response of ``/rerank``."""

    id: str
    model: str
    usage: Answer
    results: list[RerankResult]


def get_tokenizer(name: str = "", **options: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the model that stands in for the named one.

    Args:
        name: of the model.
        options: the name again, as vLLM and transformers call the argument; others are ignored.

    Raises:
        pytest.skip.Exception: no model stands in for it.
    """
    return _tokenizer(name or options.get("tokenizer_name") or options.get("pretrained_model_name_or_path", ""))


@functools.cache
def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    stand_in = rules.stand_in(name)
    if stand_in.reason is not None:
        pytest.skip(stand_in.reason)
    tokenizer = load_tokenizer(find_files(stand_in.served))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        chat_template=tokenizer.chat_templates.get("default"),
        **tokenizer.special_tokens.named,
    )


def serve_tokenizers() -> None:
    """Make ``AutoTokenizer`` find the tokenizers that stand in."""
    AutoTokenizer.from_pretrained = staticmethod(get_tokenizer)


class ModelConfig:
    """The size of the vocabulary of the model that stands in for the named one."""

    def __init__(self, model: str, **_: Any) -> None:
        self._config = load_model_config(resolve(rules.stand_in(model).served))

    def get_vocab_size(self) -> int:
        """Entries of the vocabulary."""
        return self._config.vocab_size


_TORCH_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def binary2tensor(binary: bytes, shape: tuple[int, ...], embed_dtype: str, endianness: str) -> torch.Tensor:
    """Numbers of a binary embedding response.

    Args:
        binary: the bytes.
        shape: the tensor's.
        embed_dtype: the name of the numbers' type.
        endianness: ``native``, ``big`` or ``little``.
    """
    dtype = _TORCH_TYPES[embed_dtype]
    integers = np.dtype(f"u{dtype.itemsize}").newbyteorder({"native": "=", "big": ">", "little": "<"}[endianness])
    numbers = np.frombuffer(binary, integers).astype(integers.newbyteorder("="))
    return torch.from_numpy(numbers.copy()).view(dtype).reshape(shape)


def check_embeddings_close(
    *,
    embeddings_0_lst: Sequence[Sequence[float]],
    embeddings_1_lst: Sequence[Sequence[float]],
    name_0: str,
    name_1: str,
    tol: float = 1e-3,
) -> None:
    """Assert that embeddings point the same way, pair by pair.

    Args:
        tol: the largest difference of their cosine from 1.
    """
    pairs = zip(embeddings_0_lst, embeddings_1_lst, strict=True)
    for index, (first, second) in enumerate(pairs):
        cosine = torch.cosine_similarity(torch.tensor(first), torch.tensor(second), dim=0).item()
        assert cosine >= 1 - tol, f"embedding {index} of {name_0} and {name_1}: cosine {cosine}"


class _Platform(SimpleNamespace):
    """A platform that is none of vLLM's accelerators."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("is_", "supports_", "has_")):
            return lambda: name == "is_cpu"
        raise AttributeError(name)


_CPU = _Platform(fp8_dtype=lambda: torch.float8_e4m3fn, device_type="cpu", device_count=lambda: 0)
PROVIDED: dict[str, dict[str, Any]] = {
    "vllm.config": {"ModelConfig": ModelConfig},
    "vllm.version": {"_prev_minor_version": lambda: "0.32"},
    "vllm.platforms": {"current_platform": _CPU},
    "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
    "vllm.utils.mem_constants": {"GB_bytes": 10**9, "GiB_bytes": 2**30},
    "vllm.utils.serial_utils": {
        "EMBED_DTYPES": _TORCH_TYPES,
        "ENDIANNESS": ("native", "big", "little"),
        "binary2tensor": binary2tensor,
    },
    "tests.models.utils": {"check_embeddings_close": check_embeddings_close},
    "vllm.entrypoints.pooling.pooling.protocol": {"PoolingResponse": PoolingResponse},
    "vllm.entrypoints.pooling.embed.protocol": {"EmbeddingResponse": EmbeddingResponse},
    "vllm.entrypoints.pooling.token_embed.protocol": {"TokenEmbeddingResponse": PoolingResponse},
    "vllm.entrypoints.pooling.classify.protocol": {"ClassificationResponse": ClassificationResponse},
    "vllm.entrypoints.pooling.scoring.protocol": {"ScoreResponse": ScoreResponse, "RerankResponse": RerankResponse},
}
"""Module → names that its mirror lacks, or that concern the model which stands in."""
