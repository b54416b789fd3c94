"""Random weights from the shapes alone, for measuring and testing."""

import torch

from octavo.models.loading.checkpoint import SlotFiller


def fill_with_noise(slots: dict[str, torch.Tensor], filler: SlotFiller, seed: int) -> None:
    """Small seeded normal weights; norms about one, whichever way a family stores them.

    Args:
        slots: checkpoint name → destination.
    """
    device = next(iter(slots.values())).device
    generator = torch.Generator(device).manual_seed(seed % (1 << 63))
    for name, destination in slots.items():
        if name.endswith("norm.weight"):
            destination.fill_(1.0)
        else:
            destination.normal_(0.0, 0.02, generator=generator)
        filler.note(name, destination)
