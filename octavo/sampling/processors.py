"""Custom logit processors: the interface their authors implement, with vLLM's names, and how they are loaded.

A processor need not derive from :class:`LogitsProcessor`: a class with its methods will do.
"""

import importlib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from octavo.config.vllm_config import VllmConfig
from octavo.errors import ConfigError
from octavo.platforms import runtime_of
from octavo.records import SamplingParams

logger = logging.getLogger(__name__)

T = TypeVar("T")
_METHODS = ("apply", "is_argmax_invariant", "update_state")


class MoveDirectionality(Enum):
    """Whether a request moves onto another's place or the two change places."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch changed since the last step; rows stay dense, 0 to ``batch_size`` − 1.

    An added request may take the place of one that left, which is then not listed as removed.

    Attributes:
        removed: rows that became free.
        added: row, parameters, prompt token ids and generated token ids; the last list grows as the request does.
        moved: from, to, and whether both change places; happens after all the others.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a batch before tokens are drawn."""

    @classmethod  # noqa: B027 (overriding it is optional)
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse parameters that the processor cannot work with.

        Raises:
            ValueError: with a sentence for the user.
        """

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig | None, device: torch.device, is_pin_memory: bool) -> None:
        """Set up for an engine."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """Return the changed logits, ``[B, V]`` float32; may work in place."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token always stays the likeliest; such processors run after the temperature."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch; called every step before :meth:`apply`, with None if no request came, left or moved."""


# Takes the generated token ids, or the prompt's and the generated ones, and the logits [V]; returns logits.
RequestLogitsProcessor = Callable[..., Tensor]


class AdapterLogitsProcessor(LogitsProcessor):
    """Wraps functions that each process one request's logits.

    A function that raises fails its own request only.

    Attributes:
        req_info: row → the function of the request there, for subclasses to look at.
    """

    def __init__(self, vllm_config: VllmConfig | None, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[Tensor], Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The function for a new request, None if it needs none.

        It takes either ``(output_token_ids, logits)`` or ``(prompt_token_ids, output_token_ids, logits)``, with logits
        ``[V]``, and returns the new logits.
        """

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            follow(self.req_info, batch_update, self._bind)

    def apply(self, logits: Tensor) -> Tensor:
        for row, process in self.req_info.items():
            try:
                logits[row] = process(logits[row])
            except Exception:
                logger.exception("A request's logits processor failed; the request ends with an error.")
                logits[row] = torch.nan
        return logits

    def _bind(self, added: AddedRequest) -> Callable[[Tensor], Tensor] | None:
        _, params, prompt_token_ids, output_token_ids = added
        try:
            function = self.new_req_logits_processor(params)
        except Exception:
            logger.exception("No logits processor could be made for a request; it ends with an error.")
            return lambda logits: torch.full_like(logits, torch.nan)
        if function is None:
            return None
        context = [prompt_token_ids, output_token_ids]
        return partial(function, *context[2 - _num_lists(function) :])


def _num_lists(function: RequestLogitsProcessor) -> int:
    """How many lists of token ids a request's function takes before the logits."""
    return len(inspect.signature(function).parameters) - 1


def follow(entries: dict[int, T], update: BatchUpdate, new_entry: Callable[[AddedRequest], T | None]) -> None:
    """Carry a dictionary of row → something through a batch update.

    Args:
        entries: changed in place.
        new_entry: makes the entry of an added request, None for no entry.
    """
    for row in update.removed:
        entries.pop(row, None)
    for added in update.added:
        entry = new_entry(added)
        if entry is None:
            entries.pop(added[0], None)
        else:
            entries[added[0]] = entry
    for source, target, direction in update.moved:
        moving, replaced = entries.pop(source, None), entries.pop(target, None)
        if moving is not None:
            entries[target] = moving
        if direction is MoveDirectionality.SWAP and replaced is not None:
            entries[source] = replaced


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """The same with vLLM's arguments; returns whether an entry came, left or moved.

    Args:
        new_state: makes an entry from a request's parameters, prompt token ids and generated token ids.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    follow(req_entries, batch_update, lambda added: new_state(*added[1:]))
    return before.keys() != req_entries.keys() or any(before[row] is not req_entries[row] for row in before)


def load_processors(
    specs: Sequence[type | str], config: VllmConfig | None, device: torch.device
) -> list[LogitsProcessor]:
    """Set up the processors that a setting names.

    Args:
        specs: classes, or names as ``"package.module:Class"``.
        config: handed to the processors.

    Raises:
        ConfigError: one cannot be imported, lacks a method of :class:`LogitsProcessor` or fails to start.
    """
    return [_start(cls, config, device) for cls in processor_classes(specs)]


def processor_classes(specs: Sequence[type | str]) -> list[type[LogitsProcessor]]:
    """The classes alone, for ``validate_params``; arguments and errors as of :func:`load_processors`."""
    return [_find(spec) for spec in specs]


def _start(cls: type[LogitsProcessor], config: VllmConfig | None, device: torch.device) -> LogitsProcessor:
    try:
        return cls(config, device, not runtime_of(device).is_host)
    except Exception as error:
        raise ConfigError(f"Logits processor {cls.__qualname__} cannot be set up: {error}.") from error


def _find(spec: type | str) -> type[LogitsProcessor]:
    found: object = spec
    if isinstance(spec, str):
        module_name, _, class_name = spec.partition(":")
        if not module_name or not class_name:
            raise ConfigError(f"A logits processor is named as package.module:Class, got {spec!r}.")
        try:
            found = importlib.import_module(module_name)
        except Exception as error:
            raise ConfigError(f"The module of logits processor {spec!r} cannot be imported: {error}.") from error
        for name in class_name.split("."):
            if not hasattr(found, name):
                raise ConfigError(f"Module {module_name!r} has no {class_name!r} to use as a logits processor.")
            found = getattr(found, name)
    if not isinstance(found, type):
        raise ConfigError(f"Logits processor {spec!r} is not a class.")
    missing = set(getattr(found, "__abstractmethods__", ()))
    missing |= {name for name in _METHODS if not callable(getattr(found, name, None))}
    if missing:
        raise ConfigError(
            f"Logits processor {spec!r} does not implement {', '.join(sorted(missing))} of LogitsProcessor."
        )
    return found
