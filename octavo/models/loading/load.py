"""Getting weights into a model, from whatever holds them."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import ModelConfig
from octavo.hub.source import ModelSource
from octavo.layers.weights import collect_slots, finalize
from octavo.models.loading.checkpoint import SlotFiller
from octavo.models.loading.dummy import fill_with_noise
from octavo.models.loading.gguf_weights import fill_from_gguf
from octavo.models.loading.safetensors_files import fill_from_safetensors, total_bytes, weight_files
from octavo.platforms import available_cores
from octavo.tokenization.gguf_file import GGUFFile

# A bar that appears at once and vanishes at once would only flicker.
_BAR_DELAY = 1.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading took: bytes of weights as they lie in memory, and seconds."""

    num_bytes: int
    seconds: float


@torch.inference_mode()
def load_weights(
    model: nn.Module,
    source: ModelSource,
    config: ModelConfig,
    *,
    load_format: str,
    seed: int,
    show_progress: bool,
) -> LoadReport:
    """Fill a model's tensors, then let its layers rearrange them.

    Args:
        load_format: ``auto``, ``safetensors``, ``gguf`` or ``dummy``.
        seed: of dummy weights.
        show_progress: whether a long load shows a bar, on a terminal.

    Raises:
        WeightsError: weights are missing, unexpected, mis-shaped or unreadable.
        UnsupportedModelError: the files are of another format than asked for, or of none that is loaded.
    """
    start = time.perf_counter()
    slots = collect_slots(model)
    filler = SlotFiller(slots, is_tied=config.tie_word_embeddings)
    if load_format == "dummy":
        fill_with_noise(slots, filler, seed)
    else:
        total, progress = _open(source, config, filler, load_format)
        with tqdm(
            total=total,
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            delay=_BAR_DELAY,
            disable=not (show_progress and sys.stderr.isatty()),
        ) as bar:
            for num_bytes in progress:
                bar.update(num_bytes)
    filler.finish(str(source.path))
    finalize(model)
    return LoadReport(filler.num_bytes, time.perf_counter() - start)


def _open(source: ModelSource, config: ModelConfig, filler: SlotFiller, load_format: str) -> tuple[int, Iterator[int]]:
    """Bytes to load, and the loading itself."""
    actual = "gguf" if source.kind == "gguf" else "safetensors"
    if load_format not in ("auto", actual):
        raise UnsupportedModelError(f"load_format is {load_format!r}, but {source.path} holds {actual} weights.")
    if actual == "gguf":
        file = GGUFFile.open(source.path)
        total = sum(tensor.num_bytes for tensor in file.tensors.values())
        return total, fill_from_gguf(file, config, filler, available_cores())
    return total_bytes(weight_files(source.path)), fill_from_safetensors(source.path, filler)
