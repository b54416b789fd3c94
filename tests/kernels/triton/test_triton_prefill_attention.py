"""Prefill attention against a loop over rows in float32: mixed lengths, windows, caps, sinks, pages, garbage."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from visible_keys import first_key

from octavo.kernels.attention import causal_mask
from octavo.kernels.triton import prefill_attention as prefill
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.kernels.triton.prefill_attention import prefill_attention
from octavo.kernels.triton.prefill_portable import TileConfig, portable_prefill

SMALL = TileConfig(16, 16, 4, 2)
"""Tiles so small that few tokens make many of them."""


@dataclass
class Case:
    """One step: its first rows decode, the others are chunks; everything no row owns is NaN."""

    lengths: list[tuple[int, int]]
    num_decode: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cache: torch.Tensor
    tables: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    seq_lens: torch.Tensor
    counts: torch.Tensor
    sinks: torch.Tensor
    slopes: torch.Tensor
    window: int | None

    @property
    def num_tokens(self) -> int:
        return int(self.starts[len(self.lengths)])


def make_case(
    device: torch.device,
    lengths: list[tuple[int, int]],
    *,
    num_decode: int = 0,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    block_size: int = 8,
    window: int | None = None,
    spare_rows: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Rows of (query length, length after the step) whose blocks lie strewn over the cache.

    Entries of the block tables that no query of the step needs name a block that does not exist; behind a row's last
    token its last block holds what is not a number.
    """
    random = torch.Generator().manual_seed(len(lengths) + sum(seq_len for _, seq_len in lengths))
    num_rows, (num_heads, num_kv_heads) = len(lengths), heads
    starts = torch.zeros(num_rows + spare_rows + 1, dtype=torch.int32)
    starts[1 : num_rows + 1] = torch.tensor([query_len for query_len, _ in lengths]).cumsum(0)
    starts[num_rows + 1 :] = 12345
    num_tokens = int(starts[num_rows])
    spare_tokens = 5
    tokens = torch.full((num_tokens + spare_tokens, num_heads + 2 * num_kv_heads, head_dim), float("nan"))
    tokens[:num_tokens] = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim, generator=random)
    tokens = tokens.to(dtype)
    q, k, v = tokens.split((num_heads, num_kv_heads, num_kv_heads), dim=1)

    blocks_of = [-(-seq_len // block_size) for _, seq_len in lengths]
    order = torch.randperm(sum(blocks_of), generator=random) + 1
    cache = torch.full((2, sum(blocks_of) + 1, num_kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    slots = torch.randperm(num_rows + 2, generator=random)[:num_rows]
    tables = torch.full((num_rows + 2, max(blocks_of) + 1), 10**8, dtype=torch.int32)
    for row, (query_len, seq_len) in enumerate(lengths):
        own, order = order[: blocks_of[row]], order[blocks_of[row] :]
        past = torch.randn(2, seq_len - query_len, num_kv_heads, head_dim, generator=random).to(dtype)
        new = torch.stack((k, v))[:, starts[row] : starts[row + 1]]
        first = first_key(seq_len - query_len, window) // block_size * block_size
        position = torch.arange(first, seq_len)
        cache[:, own[position // block_size], :, position % block_size] = torch.cat((past, new), 1)[
            :, first:
        ].transpose(0, 1)
        tables[slots[row], first // block_size : blocks_of[row]] = own[first // block_size :].int()
    return Case(
        lengths,
        num_decode,
        q.to(device),
        k.to(device),
        v.to(device),
        cache.to(device),
        tables.to(device),
        torch.cat((slots, torch.full((spare_rows,), 999))).to(device),
        starts.to(device),
        torch.tensor([seq_len for _, seq_len in lengths] + [777] * spare_rows, dtype=torch.int32, device=device),
        torch.tensor([num_rows, num_decode, 55], dtype=torch.int32, device=device),
        torch.randn(num_heads, generator=random).to(device),
        torch.rand(num_heads, generator=random).to(device),
        window,
    )


def expected(
    case: Case, scale: float, softcap: float | None, has_sinks: bool, has_slopes: bool = False
) -> torch.Tensor:
    """What every token of a chunk gets; other tokens keep the poison 7."""
    out = torch.full_like(case.q, 7.0, memory_format=torch.contiguous_format)
    block_size = case.cache.shape[3]
    for row, (query_len, seq_len) in enumerate(case.lengths[case.num_decode :], case.num_decode):
        tokens = slice(int(case.starts[row]), int(case.starts[row + 1]))
        first = first_key(seq_len - query_len, case.window)
        positions = torch.arange(first, seq_len, device=case.q.device)
        blocks = case.tables[case.slots[row], positions // block_size].long()
        k, v = case.cache[:, blocks, :, positions % block_size].float().transpose(0, 1)
        group = case.q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", case.q[tokens].float(), k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if has_slopes:
            scores -= case.slopes[:, None, None] * (positions[-query_len:, None] - positions)
        visible = causal_mask(query_len, seq_len - query_len, first, len(positions), case.window, case.q.device)
        scores = scores.masked_fill(~visible, float("-inf"))
        sinks = case.sinks if has_sinks else torch.full_like(case.sinks, float("-inf"))
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, query_len, 1)), dim=2)
        out[tokens] = torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :-1], v).to(out.dtype)
    return out


def check(
    case: Case,
    *,
    fresh: bool = False,
    softcap: float | None = None,
    has_sinks: bool = False,
    has_slopes: bool = False,
) -> None:
    """Through the public door, and cut into small tiles, packed and not."""
    scale = case.q.shape[2] ** -0.5
    want = expected(case, scale, softcap, has_sinks, has_slopes)
    tolerance = 1e-5 if case.q.dtype == torch.float32 else 2e-2
    rows = (case.tables, case.slots, case.starts, case.seq_lens, case.counts)
    options = {
        "num_tokens": case.num_tokens,
        "num_rows": len(case.slots),
        "scale": scale,
        "window": case.window,
        "softcap": softcap,
        "sinks": case.sinks if has_sinks else None,
        "slopes": case.slopes if has_slopes else None,
    }
    out = torch.full_like(want, 7.0)
    longest = max(query_len for query_len, _ in case.lengths)
    prefill_attention(case.q, case.k, case.v, case.cache, *rows, out, max_query_len=longest, is_fresh=fresh, **options)
    torch.testing.assert_close(out, want, rtol=tolerance, atol=tolerance)
    group = case.q.shape[1] // case.k.shape[1]
    k, v = (case.k, case.v) if fresh else (case.cache[0], case.cache[1])
    for pack in {1, 1 << (group - 1).bit_length()}:
        out = torch.full_like(want, 7.0)
        portable_prefill(case.q, k, v, *rows, out, pack=pack, config=SMALL, **options)
        torch.testing.assert_close(out, want, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(2)
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("lengths", [[(1, 1)], [(37, 37)], [(16, 16), (33, 33), (1, 1), (7, 7)]])
def test_fresh_prompts(device: torch.device, lengths: list[tuple[int, int]], fresh: bool) -> None:
    check(make_case(device, lengths), fresh=fresh)


@pytest.mark.sample(1)
@pytest.mark.parametrize("fresh", [False, True])
def test_decoding_rows_of_several_tokens_are_skipped(fresh: bool, device: torch.device) -> None:
    past = 0 if fresh else 23
    check(
        make_case(device, [(3, 40), (1, 9), (2, 2), (17, 17 + past), (5, 5 + past), (40, 40)], num_decode=3),
        fresh=fresh,
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
def test_chunks_after_what_is_cached(device: torch.device, block_size: int) -> None:
    check(make_case(device, [(20, 59), (3, 40), (17, 33), (1, 26)], block_size=block_size))


def test_decode_rows_and_rows_past_the_step_are_left_alone(device: torch.device) -> None:
    lengths = [(1, 30), (1, 5), (18, 25), (2, 2)]
    check(make_case(device, lengths, num_decode=2, spare_rows=3))
    check(make_case(device, [(1, 9), (1, 3)], num_decode=2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("window", [1, 5, 16, 40, -1, -12, -32])
def test_windows(device: torch.device, window: int) -> None:
    check(make_case(device, [(21, 50), (2, 37), (30, 30)], window=window))


@pytest.mark.sample(1)
@pytest.mark.parametrize("fresh", [False, True])
def test_caps_and_sinks(device: torch.device, fresh: bool) -> None:
    case = make_case(device, [(19, 19), (6, 6)], window=7)
    check(case, fresh=fresh, softcap=2.0)
    check(case, fresh=fresh, has_sinks=True)
    check(case, fresh=fresh, softcap=3.0, has_sinks=True)


@pytest.mark.sample(4)
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 7, 40, -20])
@pytest.mark.parametrize(("ratio", "head_dim"), [(1, 16), (3, 64), (5, 80), (7, 128)])
def test_slopes(
    device: torch.device, ratio: int, head_dim: int, window: int | None, has_sinks: bool, softcap: float | None
) -> None:
    options = {"heads": (2 * ratio, 2), "head_dim": head_dim, "window": window}
    terms = {"softcap": softcap, "has_sinks": has_sinks, "has_slopes": True}
    check(make_case(device, [(21, 50), (2, 37)], **options), **terms)
    check(make_case(device, [(19, 19), (6, 6)], **options), fresh=True, **terms)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_kernel_without_slopes_is_not_chosen_for_them(
    device: torch.device, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(prefill, "can_hopper_prefill", lambda q, k, cache: True)
    monkeypatch.setattr(prefill, "hopper_prefill", lambda *args, **options: chosen.append("hopper"))
    monkeypatch.setattr(prefill, "portable_prefill", lambda *args, **options: chosen.append("portable"))
    case = make_case(device, [(3, 3)])
    for slopes in (None, case.slopes):
        prefill.prefill_attention(
            case.q, case.k, case.v, case.cache, case.tables, case.slots, case.starts, case.seq_lens, case.counts,
            torch.empty_like(case.q), num_tokens=3, num_rows=1, max_query_len=500, is_fresh=True, scale=1.0,
            window=None, softcap=None, sinks=case.sinks, slopes=slopes, deterministic=deterministic,
        )  # fmt: skip
    assert chosen == ["hopper", "portable"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (5, 1), (7, 1), (9, 1), (16, 1)])
@pytest.mark.parametrize("head_dim", [24, 64])
def test_heads(device: torch.device, heads: tuple[int, int], head_dim: int) -> None:
    check(make_case(device, [(18, 35), (3, 3)], heads=heads, head_dim=head_dim))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(device: torch.device, dtype: torch.dtype) -> None:
    if IS_INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16 as if it were integers")
    check(make_case(device, [(18, 35), (5, 5)], dtype=dtype, head_dim=64))
    check(make_case(device, [(18, 18), (5, 5)], dtype=dtype, head_dim=64), fresh=True)


@pytest.mark.skipif(IS_INTERPRETED, reason="long chunks are for devices")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("window", [None, 100])
def test_long_chunks(device: torch.device, dtype: torch.dtype, head_dim: int, window: int | None) -> None:
    fresh = [(1, 1), (300, 300), (128, 128), (1, 1), (129, 129), (517, 517)]
    for num_decode in (0, 1):
        case = make_case(device, fresh, num_decode=num_decode, head_dim=head_dim, window=window, dtype=dtype)
        check(case, fresh=True)
        check(case, fresh=True, softcap=2.0, has_sinks=True)
    for block_size in (8, 16, 32, 64):
        chunks = [(1, 70), (300, 377), (128, 256), (65, 1000), (200, 200)]
        case = make_case(
            device, chunks, num_decode=1, head_dim=head_dim, block_size=block_size, window=window, dtype=dtype
        )
        check(case)
        check(case, softcap=2.0, has_sinks=True)


@pytest.mark.skipif(IS_INTERPRETED, reason="long chunks are for devices")
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("past", [0, 100])
def test_programs_that_take_several_tiles(device: torch.device, head_dim: int, past: int) -> None:
    lengths = [(1, 60), *[(length, length + past) for length in (517, 129, 700, 300, 1, 650)]]
    case = make_case(
        device, lengths, num_decode=1, heads=(48, 3), head_dim=head_dim, block_size=16, dtype=torch.bfloat16
    )
    check(case, fresh=past == 0)


@pytest.mark.skipif(IS_INTERPRETED, reason="only the kernel for Hopper stores: needs an H100 or H200")
@pytest.mark.parametrize(
    ("head_dim", "heads", "block_size", "dtype"),
    [
        (64, (2, 2), 16, torch.bfloat16),
        (64, (15, 5), 8, torch.float16),
        (64, (4, 2), 64, torch.bfloat16),
        (128, (3, 3), 16, torch.bfloat16),
        (128, (4, 2), 32, torch.float16),
        (128, (3, 1), 8, torch.bfloat16),
    ],
)
def test_fresh_chunks_store_their_keys(
    device: torch.device, head_dim: int, heads: tuple[int, int], block_size: int, dtype: torch.dtype
) -> None:
    lengths = [(1, 1), (2, 2), (300, 300), (128, 128), (1, 1), (129, 129), (1000, 1000), (7, 7)]
    case = make_case(
        device, lengths, num_decode=1, head_dim=head_dim, heads=heads, block_size=block_size, dtype=dtype, spare_rows=3
    )
    steps = {"max_query_len": 1000, "is_fresh": True, "window": None, "slopes": None, "deterministic": False}
    if not prefill.can_hopper_prefill(case.q, case.k, case.cache):
        pytest.skip("no such kernel on this device")
    mapping = torch.full((len(case.q),), -1, dtype=torch.int64, device=device)
    wanted = torch.full_like(case.cache, 3.0)
    is_free = torch.zeros(case.cache.shape[1], block_size, dtype=torch.bool, device=device)
    for row, (length, _) in enumerate(lengths[1:], 1):
        if length == 128:
            continue  # a row without a place in the cache
        tokens = slice(int(case.starts[row]), int(case.starts[row + 1]))
        positions = torch.arange(length, device=device)
        blocks = case.tables[case.slots[row], positions // block_size].long()
        mapping[tokens] = blocks * block_size + positions % block_size
        wanted[:, blocks, :, positions % block_size] = torch.stack((case.k[tokens], case.v[tokens])).transpose(0, 1)
        is_free[blocks[-1], (length - 1) % block_size + 1 :] = True
    outs, cache = [], torch.full_like(case.cache, 3.0)
    for slot_mapping in (None, mapping):
        outs.append(torch.full_like(case.q, 7.0, memory_format=torch.contiguous_format))
        prefill_attention(
            case.q, case.k, case.v, cache, case.tables, case.slots, case.starts, case.seq_lens, case.counts, outs[-1],
            num_tokens=case.num_tokens, num_rows=len(case.slots), scale=0.1, softcap=None, sinks=None, **steps,
            slot_mapping=slot_mapping,
        )  # fmt: skip
    torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=0)
    is_fixed = ~is_free[None, :, None, :, None].expand_as(cache)
    assert torch.equal(cache[is_fixed], wanted[is_fixed]), "the cache holds the very bits, and nothing else"


@pytest.mark.parametrize(
    ("change", "heads", "head_dim", "is_stored"),
    [
        ({}, (4, 4), 64, True),
        ({}, (4, 4), 128, True),
        ({}, (8, 2), 128, True),
        ({}, (8, 2), 64, False),
        ({}, (4, 4), 256, False),
        ({"num_rows": 3}, (4, 4), 128, False),
        ({"is_fresh": False}, (4, 4), 128, False),
        ({"has_decodes": True}, (4, 4), 128, False),
        ({"window": 300}, (4, 4), 128, False),
        ({"slopes": torch.ones(4)}, (4, 4), 128, False),
        ({"max_query_len": 100}, (4, 4), 128, False),
    ],
)
def test_what_stores_keys(
    change: dict[str, Any], heads: tuple[int, int], head_dim: int, is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "can_hopper_prefill", lambda q, k, cache: cache is not None)
    steps = {"num_tokens": 4096, "num_rows": 2, "max_query_len": 4000, "window": None, "slopes": None}
    steps |= {"is_fresh": True, "has_decodes": False}
    q, k = (torch.empty(1, count, head_dim) for count in heads)
    cache = torch.empty(2, 1, heads[1], 16, head_dim)
    assert prefill.stores_keys(q, k, cache, **(steps | change), deterministic=False, scales=None) == is_stored


def test_many_rows(device: torch.device) -> None:
    case = make_case(device, [(1 + row % 3, 1 + row % 3) for row in range(131)], heads=(1, 1))
    out = torch.full_like(case.q, 7.0, memory_format=torch.contiguous_format)
    prefill_attention(
        case.q, case.k, case.v, case.cache, case.tables, case.slots, case.starts, case.seq_lens, case.counts, out,
        num_tokens=case.num_tokens, num_rows=131, max_query_len=3, is_fresh=True, scale=0.3, window=None, softcap=None,
        sinks=None, slopes=None,
    )  # fmt: skip
    torch.testing.assert_close(out, expected(case, 0.3, None, False), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_broken_row_breaks_no_other(device: torch.device, fresh: bool) -> None:
    case = make_case(device, [(10, 10), (11, 11), (9, 9)])
    clean = expected(case, 1.0, None, False)
    second = slice(10, 21)
    for tensor in (case.q, case.k, case.v):
        tensor[second] = float("nan")
    case.cache[:, case.tables[case.slots[1], :2].long()] = float("nan")
    out = torch.full_like(clean, 7.0)
    prefill_attention(
        case.q, case.k, case.v, case.cache, case.tables, case.slots, case.starts, case.seq_lens, case.counts, out,
        num_tokens=30, num_rows=3, max_query_len=11, is_fresh=fresh, scale=1.0, window=None, softcap=None,
        sinks=None, slopes=None,
    )  # fmt: skip
    assert out[second].isnan().all()
    clean[second] = out[second]
    torch.testing.assert_close(out[:30], clean[:30], rtol=1e-5, atol=1e-5, equal_nan=True)
