"""Prompts that came as vectors: they take the place of what the embedding makes of tokens."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from octavo.models.base import CausalLM
from octavo.platforms.transfer import to_device
from octavo.records import NewRow, Step


class PromptVectors:
    """The vectors of requests in the batch, by slot.

    Args:
        dtype: what the model computes in.
    """

    def __init__(self, model: CausalLM, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._by_slot: dict[int, torch.Tensor] = {}

    def add(self, row: NewRow) -> None:
        """Take in a request, whatever was in its slot before."""
        self._by_slot.pop(row.slot, None)
        embeds = row.prompt_embeds
        if embeds is not None:
            vectors = torch.frombuffer(bytearray(embeds.data), dtype=getattr(torch, embeds.dtype))
            vectors = vectors.view(embeds.num_tokens, embeds.size)
            self._by_slot[row.slot] = vectors.to(device=self._device, dtype=self._dtype)

    def remove(self, slot: int) -> None:
        """Forget the request in a slot, if there is one."""
        self._by_slot.pop(slot, None)

    def concern(self, step: Step) -> bool:
        """Whether the step computes such prompts."""
        return bool(self._by_slot) and bool(self._parts(step))

    def put_in_place(self, step: Step) -> AbstractContextManager[None]:
        """While this is entered, the model reads the step's part of the vectors."""
        parts = self._parts(step) if self._by_slot else []
        if not parts:
            return nullcontext()
        places = np.concatenate([np.arange(place, place + len(vectors)) for place, vectors in parts])
        return self._model.input_embedding.replacing(
            to_device(places, self._device), torch.cat([vectors for _, vectors in parts])
        )

    def _parts(self, step: Step) -> list[tuple[int, torch.Tensor]]:
        """(index among the step's tokens, vectors from there on)."""
        parts = []
        first = 0
        for slot, num_computed, num_new in zip(
            step.slots.tolist(), step.num_computed.tolist(), step.num_new.tolist(), strict=True
        ):
            vectors = self._by_slot.get(slot)
            if vectors is not None and num_computed < len(vectors):
                parts.append((first, vectors[num_computed : num_computed + num_new]))
            first += num_new
        return parts
