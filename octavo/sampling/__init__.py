"""From logits to tokens.

Names are imported when they are first used: grammars and limits on reasoning live here as well, and processes that only
need those do without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.sampling.processors import (
        AdapterLogitsProcessor,
        BatchUpdate,
        LogitsProcessor,
        MoveDirectionality,
        load_processors,
        processor_classes,
    )
    from octavo.sampling.sampler import Sampler, Samples

_HOMES = {
    "AdapterLogitsProcessor": "octavo.sampling.processors",
    "BatchUpdate": "octavo.sampling.processors",
    "LogitsProcessor": "octavo.sampling.processors",
    "MoveDirectionality": "octavo.sampling.processors",
    "Sampler": "octavo.sampling.sampler",
    "Samples": "octavo.sampling.sampler",
    "load_processors": "octavo.sampling.processors",
    "processor_classes": "octavo.sampling.processors",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
