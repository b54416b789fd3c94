"""A router that norms its token itself, held against the norm and the router one after the other."""

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.triton import routing as triton_routing
from octavo.kernels.triton.routing import make_router, router_logits
from octavo.records.experts import Routing


def random(device: torch.device, seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(("hidden", "num_experts"), [(48, 6), (392, 40), (4224, 20)])
def test_it_norms_and_routes(
    device: torch.device, has_residual: bool, hidden: int, num_experts: int, dtype: torch.dtype
) -> None:
    x, residual = random(device, 1, 2, 1, hidden).to(dtype)
    scale = (1 + random(device, 2, hidden) / 4).to(dtype)
    weight = (random(device, 3, num_experts, hidden) / hidden**0.5).to(dtype).float()
    bias = random(device, 4, num_experts)
    route = make_router(weight, bias, None, Routing(num_experts, 4))
    norm = DeferredNorm(x, residual if has_residual else None, scale, 1e-6)
    chosen, shares = route(norm)

    assert torch.equal(norm.total, x + residual if has_residual else x)
    expected = basic.rms_norm.reference(norm.total, scale, 1e-6)
    tolerance = 1e-5 if dtype is torch.float32 else 2.0**-7
    torch.testing.assert_close(norm.rows(), expected, rtol=tolerance, atol=1e-5)
    found, found_shares = route(norm.rows())
    assert torch.equal(chosen, found)
    torch.testing.assert_close(shares, found_shares)
    best = router_logits(norm.rows(), weight, bias).topk(4, -1).indices
    assert torch.equal(chosen.sort().values, best.sort().values)


@pytest.mark.parametrize(("num_rows", "deterministic"), [(1, True), (2, False)])
def test_norms_are_left_to_their_kernel(
    device: torch.device, num_rows: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose sums have one order for any number of rows, of which a router's kernel takes one."""

    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError("the router normed the row")

    monkeypatch.setattr(triton_routing, "_normed_logits", refuse)
    x, residual = random(device, 1, 2, num_rows, 96)
    scale, weight = 1 + random(device, 2, 96) / 4, random(device, 3, 6, 96)
    route = make_router(weight, None, None, Routing(6, 2), deterministic=deterministic)
    norm = DeferredNorm(x, residual.clone(), scale, 1e-6)
    chosen, _ = route(norm)
    normed = basic.rms_norm.reference(x + residual, scale, 1e-6)
    torch.testing.assert_close(norm.rows(), normed)
    assert torch.equal(chosen, route(normed)[0])
