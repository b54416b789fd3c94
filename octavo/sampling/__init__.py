"""From logits to tokens."""

from octavo.sampling.processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    load_processors,
    processor_classes,
)
from octavo.sampling.sampler import Sampler, Samples

__all__ = [
    "AdapterLogitsProcessor",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "Sampler",
    "Samples",
    "load_processors",
    "processor_classes",
]
