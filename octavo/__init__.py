"""Octavo: large-language-model inference and serving.

Names are imported when they are first used, so ``import octavo`` is quick.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from octavo.cuda_compatibility import enable_cuda_compatibility

__version__ = "0.1.0"

# How long torch's OpenMP threads spin before they sleep; read when torch is first imported. With the default, two busy
# neighbours on two cores cost 98 % of the speed, as every thread spins away the time that another one needs.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
enable_cuda_compatibility()

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.llm import LLM
    from octavo.records import (
        BeamSearchOutput,
        BeamSearchParams,
        BeamSearchSequence,
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        PoolingOutput,
        PoolingParams,
        PoolingRequestOutput,
        PromptType,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        ScoringOutput,
        ScoringRequestOutput,
        StructuredOutputsParams,
        TextPrompt,
        TokensPrompt,
    )

_HOMES = {"AsyncLLM": "octavo.async_llm", "LLM": "octavo.llm"}
"""Modules of the names that are not in :mod:`octavo.records`."""

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "octavo.records")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
