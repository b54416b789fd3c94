"""Norms, rotation and the cache's stores of queries, keys and values in Triton, against the plain twin."""

from dataclasses import dataclass

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.triton import rotary

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Case:
    """Arguments of one call."""

    qkv: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    cache: torch.Tensor
    slot_mapping: torch.Tensor
    num_heads: int
    num_kv_heads: int

    def copy(self) -> "Case":
        return Case(
            self.qkv.clone(), self.q_norm, self.k_norm, self.cos, self.sin, self.cache.clone(), self.slot_mapping,
            self.num_heads, self.num_kv_heads,
        )  # fmt: skip

    def plain(self) -> None:
        basic.qk_rope_store.reference(
            self.qkv, self.q_norm, self.k_norm, 1e-6, self.cos, self.sin, self.cache, self.slot_mapping,
            self.num_heads, self.num_kv_heads,
        )  # fmt: skip

    def ours(self, tile: rotary.RotaryTile | None = None, counts: torch.Tensor | None = None) -> None:
        rotary.qk_rope_store(
            self.qkv, self.q_norm, self.k_norm, 1e-6, self.cos, self.sin, self.cache, self.slot_mapping,
            self.num_heads, self.num_kv_heads, counts, tile,
        )  # fmt: skip


def make_case(
    device: torch.device,
    *,
    num_tokens: int = 5,
    spare_tokens: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    rotary_dim: int | None = None,
    norms: str = "qk",
    is_wide: bool = False,
    dtype: torch.dtype = torch.float32,
    block_size: int = 4,
) -> Case:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    angles = 6 * random(num_tokens, 1, rotary_dim // 2, dtype=torch.float32)
    num_blocks = num_tokens // block_size + 3
    slot_mapping = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens].to(device)
    slot_mapping[1::3] = -1
    weight_dtype = torch.float32 if is_wide else dtype
    return Case(
        qkv=random(num_tokens + spare_tokens, num_heads + 2 * num_kv_heads, head_dim),
        q_norm=random(head_dim, dtype=weight_dtype) if "q" in norms else None,
        k_norm=random(head_dim, dtype=weight_dtype) if "k" in norms else None,
        cos=torch.cat((angles.cos(), angles.cos()), -1).to(dtype),
        sin=torch.cat((-angles.sin(), angles.sin()), -1).to(dtype),
        cache=random(2, num_blocks, num_kv_heads, block_size, head_dim),
        slot_mapping=slot_mapping,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


def check(case: Case, tile: rotary.RotaryTile | None = None) -> None:
    expected = case.copy()
    expected.plain()
    untouched = case.qkv[:, case.num_heads + case.num_kv_heads :].clone()
    case.ours(tile)
    tolerance = TOLERANCE[case.qkv.dtype]
    torch.testing.assert_close(case.qkv, expected.qkv, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(case.cache, expected.cache, rtol=tolerance, atol=tolerance)
    assert torch.equal(case.qkv[:, case.num_heads + case.num_kv_heads :], untouched), "values stay as they are"
    tokens, places = torch.arange(len(case.slot_mapping), device=case.qkv.device), case.slot_mapping.long()
    tokens, places = tokens[places >= 0], places[places >= 0]
    block_size = case.cache.shape[3]
    stored = case.cache[:, places // block_size, :, places % block_size]
    heads = case.qkv[tokens, case.num_heads :].unflatten(1, (2, case.num_kv_heads))
    assert torch.equal(stored, heads), "the cache holds the very bits"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("norms", ["", "q", "k", "qk"])
def test_norms_are_optional(norms: str, is_wide: bool, dtype: torch.dtype, device: torch.device) -> None:
    check(make_case(device, norms=norms, is_wide=is_wide, dtype=dtype))


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"),
    [(64, 64), (80, 80), (96, 24), (128, 64), (192, 192), (256, 256), (12, 10), (128, 2), (20, 2), (64, 0)],
)
def test_head_sizes(head_dim: int, rotary_dim: int, device: torch.device) -> None:
    check(make_case(device, head_dim=head_dim, rotary_dim=rotary_dim))
    check(make_case(device, head_dim=head_dim, rotary_dim=rotary_dim, norms=""))


@pytest.mark.sample(8)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (9, 3), (32, 8), (4, 4), (7, 1)])
@pytest.mark.parametrize("tile", [None, rotary.RotaryTile(1, 1), rotary.RotaryTile(4, 2), rotary.RotaryTile(64, 8)])
def test_any_number_of_heads_in_any_tile(
    num_heads: int, num_kv_heads: int, tile: rotary.RotaryTile | None, device: torch.device
) -> None:
    check(make_case(device, num_heads=num_heads, num_kv_heads=num_kv_heads, num_tokens=2), tile)


def test_the_cache_may_be_strided_and_the_mapping_narrow(device: torch.device) -> None:
    case = make_case(device, num_tokens=7, block_size=5)
    case.slot_mapping = case.slot_mapping.int()
    # As blocks lie that hold the keys and the values of all layers together.
    case.cache = torch.randn(9, 3, 2, 2, 5, 16, device=device)[:, 1].transpose(0, 1)
    case.slot_mapping[0] = 9 * 5 - 1
    check(case)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 2), (3, 3)])
def test_without_a_cache_queries_and_keys_only(num_heads: int, num_kv_heads: int, device: torch.device) -> None:
    case = make_case(device, num_heads=num_heads, num_kv_heads=num_kv_heads)
    case.qkv[:, num_heads + num_kv_heads :] = float("nan")
    found = case.copy()
    rotary.qk_rope_store(
        found.qkv, case.q_norm, case.k_norm, 1e-6, case.cos, case.sin, None, case.slot_mapping, num_heads, num_kv_heads
    )
    case.ours()
    torch.testing.assert_close(found.qkv, case.qkv, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_no_token_is_no_work(device: torch.device) -> None:
    check(make_case(device, num_tokens=0))


def test_padding_is_not_stored_even_if_it_is_not_a_number(device: torch.device) -> None:
    case = make_case(device)
    case.slot_mapping[:] = -1
    case.qkv[:] = float("nan")
    before = case.cache.clone()
    case.ours()
    assert torch.equal(case.cache, before)


@pytest.mark.parametrize("num_heads", [3, 15, 48])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_tiles_are_legal(num_heads: int, head_dim: int) -> None:
    tile = rotary.choose_tile(num_heads, head_dim)
    assert tile.num_heads & (tile.num_heads - 1) == 0 < tile.num_heads
    assert tile.num_warps in (1, 2, 4, 8, 16)


def test_tokens_of_rows_that_decode_are_left_alone(device: torch.device) -> None:
    case = make_case(device)
    expected, found = case.copy(), case.copy()
    expected.plain()
    found.ours(counts=torch.tensor([4, 2, 5, 0, 3], dtype=torch.int32, device=device))
    assert torch.equal(found.qkv[:3], case.qkv[:3])
    torch.testing.assert_close(found.qkv[3:], expected.qkv[3:], rtol=1e-5, atol=1e-5)
    for token, place in enumerate(case.slot_mapping.tolist()):
        if place >= 0:
            block, offset = divmod(place, case.cache.shape[3])
            wanted = case if token < 3 else expected
            torch.testing.assert_close(found.cache[:, block, :, offset], wanted.cache[:, block, :, offset])
