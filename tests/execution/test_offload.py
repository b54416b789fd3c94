"""Weights leave the device's memory and come back, wherever layers keep them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from octavo.execution.offload import HostWeights, checksums, tensors_within


@dataclass(slots=True)
class Product:
    """Holds a weight behind slots."""

    weight: torch.Tensor


def product_of(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Holds a weight in a closure."""
    return lambda x: x @ weight


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("table", torch.randn(5, 8), persistent=False)
        self.inner = nn.Linear(8, 8)
        self.half = self.weight.data[:4]
        self.packed = Product(torch.randn(8, 8).to(torch.bfloat16))
        self.apply_last = product_of(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x @ self.weight) + self.table[:1]
        x = x + (x[:, :4] @ self.half) + x @ self.packed.weight.float()
        return self.apply_last(x)


@torch.inference_mode()
def test_there_and_back() -> None:
    model = Model()
    x = torch.randn(2, 8)
    expected, before = model(x), checksums(model)
    tensors = list(tensors_within(model))
    host = HostWeights(model)
    assert host.num_bytes == 4 * (64 + 40 + 64 + 8 + 64) + 2 * 64
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    assert len(tensors) == 7
    host.restore()
    assert torch.equal(model(x), expected)
    assert checksums(model) == before
    assert model.half.data_ptr() == model.weight.data_ptr(), "views still share memory"


def test_checksums_see_each_bit_and_the_order() -> None:
    model = Model()
    before = checksums(model)
    assert {"weight", "table", "inner.weight", "inner.bias", "packed"} <= set(before)
    with torch.no_grad():
        model.inner.weight[3, 4] = torch.nextafter(model.inner.weight[3, 4], torch.tensor(9.0))
    after = checksums(model)
    assert [name for name in before if before[name] != after[name]] == ["inner.weight"]
    with torch.no_grad():
        model.inner.bias.copy_(model.inner.bias.flip(0))
    assert checksums(model)["inner.bias"] != before["inner.bias"]
