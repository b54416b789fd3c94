"""What tensors' ways through a run show."""

import torch
from torch import nn

from octavo.models.generic.flow import Flow


def _heads() -> torch.Tensor:
    return torch.empty(1, 2, 5, 8, device="meta")


def test_heads_of_which_a_part_is_changed() -> None:
    heads, flow = _heads(), Flow(nn.Module())
    with flow:
        source = heads[..., :4]
        part = source * 2
        completed = torch.cat((part, heads[..., 4:]), -1)
        others = [
            torch.cat((part, heads[..., 4:] * 2), -1),
            torch.cat((heads[..., 4:], part), -1),
            torch.cat((part, heads[..., :4]), -1),
            torch.cat((part, _heads()[..., 4:]), -1),
        ]
    assert flow.is_completed(completed, part, source)
    assert not any(flow.is_completed(other, part, source) for other in others)


def test_the_module_that_made_a_tensor() -> None:
    layer = nn.Linear(8, 8, device="meta")
    flow = Flow(nn.Sequential(layer))
    with torch.inference_mode(), flow:
        made = layer(_heads()).view(2, 5, 8)
        part = made[:1]
    assert flow.leaf_behind(made) == "0" and flow.is_linear("0")
    assert flow.leaf_behind(part) is flow.leaf_behind(_heads()) is None
    with torch.inference_mode(), flow:
        made * 2
    assert flow.leaf_behind(made) is None, "something else reads it"


def test_modules_that_read_a_tensor_last() -> None:
    first, second = nn.GELU(), nn.GELU()
    flow = Flow(nn.Sequential(first, second))
    with torch.inference_mode(), flow:
        x = _heads() * 2
        first(x)
        second(x)
    assert flow.last_readers() == {"1"}
