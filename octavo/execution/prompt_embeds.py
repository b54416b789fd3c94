"""Prompts given as vectors, which replace the output of the embedding layer."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from octavo.models.base import CausalLM
from octavo.platforms.transfer import to_device
from octavo.records import NewRow, Step


class PromptVectors:
    """The prompt vectors of requests in the batch, by slot.

    Args:
        dtype: the model's data type.
    """

    def __init__(self, model: CausalLM, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._by_slot: dict[int, torch.Tensor] = {}

    def take_changes(self, step: Step) -> None:
        """Drop requests whose slots were freed, and add new ones."""
        for slot in step.freed_slots:
            self._by_slot.pop(slot, None)
        for row in step.new_rows:
            self._add(row)

    def _add(self, row: NewRow) -> None:
        self._by_slot.pop(row.slot, None)
        embeds = row.prompt_embeds
        if embeds is not None:
            vectors = torch.frombuffer(bytearray(embeds.data), dtype=getattr(torch, embeds.dtype))
            vectors = vectors.view(embeds.num_tokens, embeds.size)
            self._by_slot[row.slot] = vectors.to(device=self._device, dtype=self._dtype)

    def concern(self, step: Step) -> bool:
        """Whether the step computes tokens of prompts given as vectors."""
        return bool(self._by_slot) and bool(self._parts(step))

    def put_in_place(self, step: Step) -> AbstractContextManager[None]:
        """A context in which the model's embedding returns the step's part of the vectors."""
        parts = self._parts(step) if self._by_slot else []
        if not parts:
            return nullcontext()
        places = np.concatenate([np.arange(place, place + len(vectors)) for place, vectors in parts])
        return self._model.input_embedding.replacing(
            to_device(places, self._device), torch.cat([vectors for _, vectors in parts])
        )

    def _parts(self, step: Step) -> list[tuple[int, torch.Tensor]]:
        """Pairs of the first token's index in the step, and the vectors of the tokens from there."""
        parts = []
        first = 0
        for slot, num_computed, num_scheduled in zip(
            step.slots.tolist(), step.num_computed.tolist(), step.num_scheduled_tokens.tolist(), strict=True
        ):
            vectors = self._by_slot.get(slot)
            if vectors is not None and num_computed < len(vectors):
                parts.append((first, vectors[num_computed : num_computed + num_scheduled]))
            first += num_scheduled
        return parts
