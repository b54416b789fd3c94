"""Random weights of the right shapes, for benchmarks and tests (``load_format=dummy``)."""

import torch


def fill_with_noise(slots: dict[str, torch.Tensor], seed: int) -> None:
    """Fill tensors in place with small seeded normal values; norms are about one, however a family stores them.

    Args:
        slots: checkpoint name → destination.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for name, destination in slots.items():
        device = destination.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed % (1 << 63))
        if name.endswith("norm.weight"):
            destination.fill_(1.0)
        else:
            destination.normal_(0.0, 0.02, generator=generators[device])
