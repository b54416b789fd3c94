"""Device memory shared by the programs of a split-K GEMM: partial sums and arrival counters."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory of a device; launches of one stream run one after another, so they can share it.

    Attributes:
        partials: float32 partial sums.
        arrivals: int32, how many programs of a tile are done; zero between launches.
    """

    partials: torch.Tensor
    arrivals: torch.Tensor


# Enough for most models, so that one workspace serves all of a model's GEMMs.
_LEAST_PARTIALS = 8 << 20
_LEAST_TILES = 4096

_workspaces: dict[torch.device, Workspace] = {}


def reserve_workspace(
    device: torch.device, num_partials: int, num_tiles: int, *, at_hand: Workspace | None = None
) -> Workspace:
    """A workspace of at least this size: the one at hand, else the device's.

    A larger need allocates a new one; owners of the old one (GEMMs in captured graphs) keep it alive.
    """
    current = _workspaces.get(device)
    for space in (at_hand, current):
        if space is not None and space.partials.numel() >= num_partials and space.arrivals.numel() >= num_tiles:
            return space
    if current is not None:
        num_partials = max(num_partials, current.partials.numel())
        num_tiles = max(num_tiles, current.arrivals.numel())
    _workspaces[device] = Workspace(
        partials=torch.empty(max(num_partials, _LEAST_PARTIALS), dtype=torch.float32, device=device),
        arrivals=torch.zeros(max(num_tiles, _LEAST_TILES), dtype=torch.int32, device=device),
    )
    return _workspaces[device]
