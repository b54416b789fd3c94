"""Random weights of the right shapes, for benchmarks and tests (``load_format=dummy``)."""

import torch

from octavo.quantization.pending import PendingSlot
from octavo.quantization.slot import Slots

_STD = 0.02
_FLOAT8_STD = 64.0
_MXFP4_EXPONENT = 127 - 7  # numbers in its blocks are about 3


def fill_with_noise(slots: Slots, seed: int, dtype: torch.dtype) -> None:
    """Fill slots with small seeded normal values; norms are one, however a family stores them.

    Args:
        slots: checkpoint name → destinations.
        dtype: of the checkpoint whose weights these could be; wider ones, such as a router's, have its values.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for name, places in slots.items():
        device = places[0].view.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed % (1 << 63))
        view = places[0].view
        if isinstance(places[0], PendingSlot):
            for slot in places:
                if isinstance(slot, PendingSlot) and slot.is_first:
                    slot.pending.fill_with_noise(_STD, generators[device])
        elif name.endswith("_blocks"):
            numbers = torch.randint(256, places[0].source_shapes[0], generator=generators[device], device=device)
            for slot in places:
                slot.fill(numbers.to(torch.uint8))
        elif name.endswith("_scales"):
            for slot in places:
                slot.view.fill_(_MXFP4_EXPONENT)
        elif name.endswith("norm.weight") or (name.endswith(".weight") and view.dim() == 1):
            view.fill_(1.0)
        elif places[0].is_direct and len(places) == 1 and not (places[0].has_scale or name.endswith("_scale")):
            view.normal_(0.0, _STD, generator=generators[device])
            if view.dtype.itemsize > dtype.itemsize:
                view.copy_(view.to(dtype))
        else:
            values = torch.empty(places[0].source_shapes[0], dtype=torch.float32, device=device)
            if name.endswith("_scale"):
                values.fill_(_STD / _FLOAT8_STD)
            else:
                values.normal_(0.0, _FLOAT8_STD if places[0].has_scale else _STD, generator=generators[device])
            for slot in places:
                slot.fill(values.to(torch.float8_e4m3fn) if slot.has_scale else values)
