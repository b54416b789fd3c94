"""From logits to tokens.

The interface of custom logits processors is imported when it is first used: grammars and limits on reasoning live here
as well, and processes that only need those do without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.sampling.processors import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, MoveDirectionality

__all__ = ["AdapterLogitsProcessor", "BatchUpdate", "LogitsProcessor", "MoveDirectionality"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("octavo.sampling.processors"), name)
