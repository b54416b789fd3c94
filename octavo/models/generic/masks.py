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
        window: number of tokens that a query attends to, itself included; None for all before it. In both directions,
            that of each side.
        is_bidirectional: whether a query attends to later tokens as well.
        complaint: why it is not supported; empty if it is.
    """

    window: int | None = None
    is_bidirectional: bool = False
    complaint: str = ""


def read_mask(*_: Any, mask_function: Callable[..., Any], **options: Any) -> Mask:
    """The library's interface of mask functions: keyword arguments as there, of which one counts."""
    try:
        visible = [_visible(mask_function, query) for query in _PROBES]
    except Exception:  # a function of the model's own, which needs more than positions
        return Mask(complaint="its attention masks depend on more than the tokens' positions")
    before = [seen[: query + 1] for query, seen in zip(_PROBES, visible, strict=True)]
    after = [seen[query:] for query, seen in zip(_PROBES, visible, strict=True)]
    is_bidirectional = any(bool(seen[1:].any()) for seen in after)
    counts = [int(seen.sum()) for seen in before]
    window = None if counts[-1] == len(before[-1]) else counts[-1]
    is_regular = all(_is_window(seen.flip(0), window) for seen in before)
    if is_bidirectional:
        is_regular &= all(_is_window(seen, window) for seen in after)
    if is_regular:
        return Mask(window, is_bidirectional)
    return Mask(complaint="its attention masks are neither causal nor sliding windows")


def _is_window(seen: torch.Tensor, window: int | None) -> bool:
    """Whether the tokens up to a distance are seen, of those in the order of their distance."""
    distance = torch.arange(len(seen), device=seen.device)
    return bool((seen == (distance < (len(seen) if window is None else window))).all())


def _visible(mask_function: Callable[..., Any], query: int) -> torch.Tensor:
    """Which keys are seen, of as many behind the query as before it and one more, ``[2 · query + 2]`` bool."""
    with torch.device("cpu"):
        keys = torch.arange(2 * query + 2)
        head = torch.tensor(0)
        seen = mask_function(head, head, torch.tensor(query), keys)
        return torch.as_tensor(seen).expand(len(keys))
