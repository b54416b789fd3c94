"""Reads which keys a mask function of the transformers library lets a query see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_PROBES = (0, 1, 2, 5, 63, 1000, 4095, 70_001)
"""Positions of queries that are looked at; every window up to the last one shows."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask in place of its values.

    Attributes:
        window: number of tokens that a query attends to, itself included; None for all before it.
        complaint: why it is not supported; empty if it is.
    """

    window: int | None = None
    complaint: str = ""


def read_mask(*_: Any, mask_function: Callable[..., Any], **options: Any) -> Mask:
    """The library's interface of mask functions: keyword arguments as there, of which one counts."""
    try:
        visible = [_visible(mask_function, query) for query in _PROBES]
    except Exception:  # a function of the model's own, which needs more than positions
        return Mask(complaint="its attention masks depend on more than the tokens' positions")
    if any(seen[query + 1 :].any() for query, seen in zip(_PROBES, visible, strict=True)):
        return Mask(complaint="its tokens attend to later ones")
    counts = [int(seen.sum()) for seen in visible]
    if counts == [query + 1 for query in _PROBES]:
        return Mask()
    window = counts[-1]
    is_window = counts == [min(query + 1, window) for query in _PROBES] and all(
        bool(seen[max(query + 1 - window, 0) : query + 1].all()) for query, seen in zip(_PROBES, visible, strict=True)
    )
    return Mask(window) if is_window else Mask(complaint="its attention masks are neither causal nor sliding windows")


def _visible(mask_function: Callable[..., Any], query: int) -> torch.Tensor:
    """Which of the keys up to the one behind the query are seen, ``[query + 2]`` bool."""
    with torch.device("cpu"):
        keys = torch.arange(query + 2)
        head = torch.tensor(0)
        seen = mask_function(head, head, torch.tensor(query), keys)
        return torch.as_tensor(seen).expand(query + 2)
