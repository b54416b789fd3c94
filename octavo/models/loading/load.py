"""Loads weights into a model from safetensors, GGUF or dummy values, and checks them before."""

import logging
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from octavo.config.values import SAFETENSORS_READERS
from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import ModelConfig
from octavo.hub.source import ModelSource
from octavo.layers.weights import collect_slots, finish, fit_forms
from octavo.models.base import CausalLM
from octavo.models.loading.checkpoint import Checkpoint, check_fit, with_found_names, without_prefix
from octavo.models.loading.dummy import fill_with_noise
from octavo.models.loading.gguf_weights import GGUFCheckpoint
from octavo.models.loading.pooled_weights import checkpoint_parts
from octavo.models.loading.safetensors_files import SafetensorsCheckpoint
from octavo.models.pooled import EncoderBase, PooledModel
from octavo.platforms import runtime_of
from octavo.quantization.config import SchemeOptions
from octavo.quantization.resolve import stored_quantization
from octavo.quantization.slot import Slots
from octavo.telemetry.phases import PhaseTimer
from octavo.telemetry.progress import start_bar

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Statistics of a load: bytes of weights in memory, and seconds."""

    num_bytes: int
    seconds: float


@runtime_checkable
class ReadsConverted(Protocol):
    """A model whose checkpoints are not read as they are."""

    def convert_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint as the model's slots name it."""
        ...


@torch.inference_mode()
def load_weights(
    model: nn.Module,
    source: ModelSource,
    config: ModelConfig,
    *,
    load_format: str,
    seed: int,
    show_progress: bool,
    phases: PhaseTimer | None = None,
) -> LoadReport:
    """Fill a model's tensors in place, then let its layers prepare them. A loaded model may be loaded again.

    Args:
        load_format: the setting's value.
        seed: seed of dummy weights.
        show_progress: show a progress bar on a terminal if the load takes long.
        phases: records the phase ``weights``; None only logs it.

    Raises:
        WeightsError: weights are missing, unexpected, mis-shaped or unreadable.
        UnsupportedModelError: the files have another format than requested, or one that is not supported.
    """
    slots = collect_slots(model)
    num_bytes = sum(slot.view.nbytes for places in slots.values() for slot in places)
    with (phases or PhaseTimer(logger)).phase("weights") as phase:
        optional = {name: places for name, places in slots.items() if places[0].is_optional}
        for slot in (slot for places in optional.values() for slot in places):
            slot.view.fill_(1)
        if load_format == "dummy":
            required = {name: places for name, places in slots.items() if name not in optional}
            fill_with_noise(required, seed, getattr(torch, config.dtype))
        else:
            parts = _fitting_parts(model, source, config, load_format)
            _warn_of_missing(len(optional), [wanted for _, wanted in parts])
            for checkpoint, wanted in parts:
                _copy(checkpoint, wanted, show_progress)
        finish(model)
        _wait_for(slots)
        phase.num_bytes = num_bytes
    return LoadReport(num_bytes, phase.seconds)


def check_weights(model: nn.Module, source: ModelSource, config: ModelConfig, load_format: str = "safetensors") -> None:
    """Check by names and shapes that files fit a model, which may be on the meta device.

    Args:
        load_format: see :func:`load_weights`.

    Raises:
        WeightsError: weights are missing, unexpected, mis-shaped or unreadable.
        UnsupportedModelError: the files have another format than requested, or one that is not supported.
    """
    if load_format != "dummy":
        _fitting_parts(model, source, config, load_format)


def check_format(source: ModelSource, config: ModelConfig, load_format: str) -> None:
    """Check only the format of the weights, and how they are quantised; the files need not exist.

    Raises:
        UnsupportedModelError: they have another format than requested, or one that is not supported.
    """
    actual = "gguf" if source.kind == "gguf" else "safetensors"
    if load_format == "dummy":
        return
    wanted = "safetensors" if load_format in SAFETENSORS_READERS else load_format
    if wanted not in ("auto", actual):
        raise UnsupportedModelError(f"load_format is {load_format!r}, but {source.path} holds {actual} weights.")
    stored_quantization(config, SchemeOptions())


def _fitting_parts(
    model: nn.Module, source: ModelSource, config: ModelConfig, load_format: str
) -> list[tuple[Checkpoint, Slots]]:
    """The checkpoints to read, each with the tensors that it fills."""
    checkpoint = _open(source, config, load_format)
    decoder = model.backbone if isinstance(model, PooledModel) else model
    if isinstance(decoder, ReadsConverted):
        checkpoint = decoder.convert_checkpoint(checkpoint)
    shapes = checkpoint.shapes()
    prefix = decoder.base_prefix if isinstance(decoder, CausalLM) else ""
    fit_forms(decoder, lambda name: name in shapes or name.removeprefix(prefix) in shapes)
    slots = collect_slots(model)
    if isinstance(model, CausalLM):
        slots = without_prefix(slots, checkpoint, model.base_prefix)
    parts = [(checkpoint, slots)]
    if isinstance(model, PooledModel):
        parts = checkpoint_parts(model, checkpoint, source.path)
    unused = _draft_layers(config)
    if isinstance(decoder, (CausalLM, EncoderBase)):
        unused += decoder.unused_weights
    parts = [(part, with_found_names(wanted, part)) for part, wanted in parts]
    for part, wanted in parts:
        check_fit(wanted, part, is_tied=config.tie_word_embeddings, unused=unused)
    return parts


def _warn_of_missing(num_optional: int, found: list[Slots]) -> None:
    """Say how many tensors are filled with ones, since the files do not have them."""
    num_found = sum(slot.is_optional for part in found for places in part.values() for slot in places)
    if num_found < num_optional:
        missing = num_optional - num_found
        logger.warning("The checkpoint lacks %d scales of keys and values; they are taken to be 1.", missing)


def _draft_layers(config: ModelConfig) -> tuple[str, ...]:
    """Beginnings of names of layers that predict further tokens (arXiv:2412.19437), with which nothing drafts yet."""
    count = config.raw.get("num_nextn_predict_layers")
    if not isinstance(count, int):
        return ()
    return "mtp.", "model.mtp_", *(f"model.layers.{config.num_layers + index}." for index in range(count))


def _wait_for(slots: Slots) -> None:
    """Wait until the device has finished its queued work."""
    for device in {slot.view.device for places in slots.values() for slot in places}:
        runtime_of(device).synchronize()


def _open(source: ModelSource, config: ModelConfig, load_format: str) -> Checkpoint:
    check_format(source, config, load_format)
    return GGUFCheckpoint(source.path, config) if source.kind == "gguf" else SafetensorsCheckpoint(source.path)


def _copy(checkpoint: Checkpoint, slots: Slots, show_progress: bool) -> None:
    shapes = checkpoint.shapes()
    num_parameters = sum(math.prod(shapes[name]) for name in slots)
    with start_bar(num_parameters, "Loading weights", "parameters", is_wanted=show_progress) as bar:
        for count in checkpoint.copy_into(slots):
            bar.update(count)
