"""Long chunks over quantised caches on Hopper: keys and values in the compute type, rounded in place or expanded."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_triton_quantized_cache import HEADS, KV_HEADS, TYPES, Case, make_case, poison, stands_for

from octavo.kernels import AttentionSpec, HeadNorms, ReferenceAttention
from octavo.kernels.triton import attention as triton_attention
from octavo.kernels.triton import prefill_attention as prefill
from octavo.kernels.triton import prefill_expand
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.launch import IS_INTERPRETED
from octavo.kernels.triton.prefill_expand import TILE, ExpandedKeys, expand_keys, max_expanded_tokens
from octavo.kernels.triton.rotary import qk_rope_store

SIZE = 64


def first_seen(case: Case, row: int, window: int | None) -> int:
    """The first key that the row's first query sees."""
    rows = case.inputs.rows
    query_len = int(rows.query_starts[row + 1] - rows.query_starts[row])
    return 0 if window is None else max(int(rows.seq_lens[row]) - query_len - window + 1, 0)


@pytest.mark.sample(8)
@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("window", [None, 3, 150])
@pytest.mark.parametrize("source", ["own", "given", "given by head"])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("name", ["chunks", "mixed", "far", "many"])
def test_rows_are_expanded_one_behind_the_other(
    name: str, stored: torch.dtype, source: str, window: int | None, num_heads: int, device: torch.device
) -> None:
    kinds: dict[str, bool] = {"are_given": source != "own", "by_head": source.endswith("head")}
    case = make_case(name, stored, device, **kinds, window=window, dtype=torch.float16, size=SIZE)
    wanted = stands_for(case)
    if source == "own":
        poison(case)
    inputs = case.inputs
    num_decodes, num_rows = int(inputs.rows.counts[1]), int(inputs.rows.counts[0])
    lengths = inputs.rows.seq_lens.tolist()
    num_tokens = max_expanded_tokens(inputs.shape.num_tokens, sum(lengths), num_rows, window)
    out = torch.full((2, num_tokens, num_heads, SIZE), 7.0, dtype=torch.float16, device=device)
    starts = torch.full((num_rows,), 12345, dtype=torch.int32, device=device)
    first_head = KV_HEADS - num_heads
    # What no query sees is not read: neither its entries of the block table nor, in a block, its values.
    for row in range(num_decodes, num_rows):
        inputs.block_tables[row, : first_seen(case, row, window) // inputs.block_size] = 10**8
    expand_keys(
        case.cache, case.scales, inputs.block_tables, inputs.slots, inputs.rows.query_starts, inputs.rows.seq_lens,
        inputs.rows.counts, out, starts, first_head=first_head, window=window,
    )  # fmt: skip
    end = 0
    for row in range(num_decodes, num_rows):
        first, start = first_seen(case, row, window), int(starts[row])
        positions = torch.arange(first, lengths[row], device=device)
        blocks = inputs.block_tables[row, positions // inputs.block_size].long()
        seen = wanted[:, blocks, first_head:, positions % inputs.block_size].transpose(0, 1).to(torch.float16)
        assert torch.equal(out[:, start + first : start + lengths[row]], seen)
        row_end = -(-(start + lengths[row]) // TILE) * TILE
        assert not out[:, start + lengths[row] : row_end].any(), "zeros behind the last token, whatever its block holds"
        assert not out[:, start + first // 128 * 128 : start + first].any(), "and before the first"
        assert end <= start + first // 128 * 128, "rows do not overlap"
        end = row_end
    assert end <= num_tokens
    assert (out[:, end:] == 7.0).all()


def test_many_chunks_are_found(device: torch.device) -> None:
    """More rows than one round of the search takes."""
    case = make_case("crowd", torch.int8, device, are_given=False, dtype=torch.float16, size=SIZE)
    num_rows, rows = int(case.inputs.rows.counts[0]), case.inputs.rows
    num_tokens = max_expanded_tokens(case.inputs.shape.num_tokens, int(rows.seq_lens.sum()), num_rows, None)
    out = torch.zeros(2, num_tokens, KV_HEADS, SIZE, dtype=torch.float16, device=device)
    starts = torch.zeros(num_rows, dtype=torch.int32, device=device)
    expand_keys(
        case.cache, case.scales, case.inputs.block_tables, case.inputs.slots, rows.query_starts, rows.seq_lens,
        rows.counts, out, starts, first_head=0, window=None,
    )  # fmt: skip
    spans = -(-rows.seq_lens // TILE) * TILE
    assert torch.equal(starts.long(), spans.cumsum(0) - spans)
    wanted = stands_for(case).to(torch.float16)
    for row in (0, 127, 128, num_rows - 1):
        block = int(case.inputs.block_tables[row, 0])
        assert torch.equal(out[:, int(starts[row])], wanted[:, block, :, 0])


@pytest.mark.sample(4)
@pytest.mark.parametrize("are_given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("rotary_size", [SIZE, 32])
def test_keys_rounded_in_place_are_those_of_the_cache(
    rotary_size: int, stored: torch.dtype, are_given: bool, device: torch.device
) -> None:
    case = make_case("chunks", stored, device, are_given=are_given, dtype=torch.float16, size=SIZE)
    norms = HeadNorms(torch.rand(SIZE, device=device) + 0.5, torch.rand(SIZE, device=device) + 0.5, 1e-6)
    plain = case.copy()
    qkvs = []
    for each, rounds in ((case, True), (plain, False)):
        qkvs.append(each.qkv.view(len(each.qkv), HEADS + 2 * KV_HEADS, SIZE))
        cos, sin = (table[..., :rotary_size] for table in each.rope)
        qk_rope_store(
            qkvs[-1], norms.query.half(), norms.key.half(), 1e-6, cos, sin, each.cache, each.inputs.slot_mapping,
            HEADS, KV_HEADS, scales=each.scales, rounds_in_place=rounds,
        )  # fmt: skip
    assert torch.equal(case.cache.view(torch.uint8), plain.cache.view(torch.uint8))
    assert torch.equal(qkvs[0][:, :HEADS], qkvs[1][:, :HEADS]), "queries are not rounded"
    mapping = case.inputs.slot_mapping
    held = stands_for(case)[:, mapping // 8, :, mapping % 8].to(torch.float16)  # [T, 2, Hkv, D]
    assert torch.equal(qkvs[0][:, HEADS:].reshape_as(held), held)


def test_as_many_heads_as_fit_are_expanded_at_a_time(device: torch.device) -> None:
    room = ExpandedKeys(torch.empty(1 << 16, dtype=torch.uint8), torch.empty(1, dtype=torch.int32))
    # A head takes 2 * 64 * 128 bytes: four fit.
    assert [room.num_heads(64, count, 128) for count in (1, 2, 4, 5, 8, 9)] == [1, 2, 4, 3, 4, 3]
    assert room.num_heads(256, 8, 128) == 1
    assert room.num_heads(257, 8, 128) == 0
    assert room.halves(64, 4, 64, torch.float16).shape == (2, 64, 4, 64)


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({}, ["expand 0", "hopper 0", "expand 1", "hopper 2"]),
        ({"is_fresh": True, "num_cached_tokens": 0}, ["hopper"]),
        ({"num_cached_tokens": None}, ["portable"]),
        ({"num_cached_tokens": 1 << 20}, ["portable"]),
        ({"expanded": None}, ["portable"]),
        ({"max_query_len": 3}, ["expand 0", "hopper 0", "expand 1", "hopper 2"]),
        ({"max_query_len": 60, "is_fresh": True}, ["portable"]),
        ({"deterministic": True}, ["portable"]),
        ({"deterministic": True, "is_fresh": True}, ["portable"]),
        ({"slopes": torch.ones(HEADS)}, ["portable"]),
        ({"window": -8}, ["portable"]),
    ],
    ids=str,
)
def test_which_kernel_reads_a_quantised_cache(
    change: dict[str, Any], chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    case = make_case("chunks", torch.int8, torch.device("cpu"), are_given=False, dtype=torch.float16, size=SIZE)
    q, k, v = case.qkv.view(len(case.qkv), -1, SIZE).split((HEADS, KV_HEADS, KV_HEADS), 1)

    def expanded_hopper(*args: torch.Tensor, key_starts: torch.Tensor, **_: Any) -> None:
        found.append(f"hopper {args[0].storage_offset() // SIZE}")

    monkeypatch.setattr(prefill, "can_hopper_prefill", lambda q, k, cache: cache is None)
    monkeypatch.setattr(prefill, "num_multiprocessors", lambda device: 132)  # a CPU has none where kernels are compiled
    monkeypatch.setattr(prefill, "hopper_prefill", lambda *args, **_: found.append("hopper"))
    monkeypatch.setattr(prefill, "portable_prefill", lambda *args, **_: found.append("portable"))
    monkeypatch.setattr(prefill_expand, "hopper_prefill", expanded_hopper)
    monkeypatch.setattr(
        prefill_expand, "expand_keys", lambda *_, first_head, **__: found.append(f"expand {first_head}")
    )
    # Room for one head of 1,024 tokens.
    room = ExpandedKeys(torch.empty(1024 * 2 * 2 * SIZE, dtype=torch.uint8), torch.empty(9, dtype=torch.int32))
    options: dict[str, Any] = {"max_query_len": 500, "is_fresh": False, "window": None, "slopes": None}
    options |= {"deterministic": False, "num_cached_tokens": 400, "expanded": room} | change
    prefill.prefill_attention(
        q, k, v, case.cache, case.inputs.block_tables, case.inputs.slots, case.inputs.rows.query_starts,
        case.inputs.rows.seq_lens, case.inputs.rows.counts, torch.empty_like(q), num_tokens=500, num_rows=2, scale=1.0,
        softcap=None, sinks=None, scales=case.scales, **options,
    )  # fmt: skip
    assert found == chosen


NEEDS_HOPPER = pytest.mark.skipif(IS_INTERPRETED, reason="the kernel for Hopper: needs an H100 or H200")


def attend(case: Case, spec: AttentionSpec, backend: TritonAttention) -> torch.Tensor:
    """A step without a rotation, whose sums may round otherwise than those of the twin."""
    rope = torch.ones_like(case.rope[0]), torch.zeros_like(case.rope[1])
    return backend.run(case.qkv, rope, None, case.cache, case.inputs, spec, scales=case.scales)


@NEEDS_HOPPER
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize(
    ("stored", "dtype", "are_given"),
    [
        (torch.float8_e4m3fn, torch.bfloat16, False),
        (torch.float8_e4m3fn, torch.float16, True),
        (torch.float8_e5m2, torch.float16, False),
        (torch.int8, torch.bfloat16, False),
    ],
)
@pytest.mark.parametrize("name", ["long chunks", "long fresh"])
def test_long_chunks_equal_the_twin(
    name: str,
    stored: torch.dtype,
    dtype: torch.dtype,
    are_given: bool,
    size: int,
    window: int | None,
    softcap: float | None,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill, "portable_prefill", lambda *_, **__: pytest.fail("the portable kernel was chosen"))
    # One head of 2,048 tokens: the other goes after it.
    monkeypatch.setattr(prefill_expand, "EXPANDED_BYTES", 2 * 2 * size * 2048)
    case = make_case(name, stored, device, are_given=are_given, window=window, dtype=dtype, size=size, block_size=16)
    expected = case.copy()
    if not are_given:
        poison(case)
    spec = AttentionSpec(HEADS, KV_HEADS, size, 0.1, softcap)
    rope = torch.ones_like(case.rope[0]), torch.zeros_like(case.rope[1])
    wanted = ReferenceAttention().run(
        expected.qkv, rope, None, expected.cache, expected.inputs, spec, scales=expected.scales
    )
    found = attend(case, spec, TritonAttention(device, 8, 2048, deterministic=False))
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert (found.float() - wanted.float()).abs().mean() < 1e-2 * wanted.float().abs().mean()


@NEEDS_HOPPER
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("cut", [128, 389])
def test_a_prompt_in_chunks_gets_the_bits_of_a_whole_one(
    cut: int, stored: torch.dtype, size: int, device: torch.device
) -> None:
    spec = AttentionSpec(HEADS, KV_HEADS, size, 0.1)
    backend = TritonAttention(device, 8, 2048, deterministic=False)
    case = make_case("one fresh", stored, device, are_given=False, dtype=torch.bfloat16, size=size, block_size=16)
    parts = case.copy()
    whole = attend(case, spec, backend)
    found = []
    for start, stop in ((0, cut), (cut, len(case.qkv))):
        rows = replace(
            parts.inputs.rows,
            counts=torch.tensor([1, 0, stop - start, 9, 0], dtype=torch.int32, device=device),
            query_starts=torch.tensor([0, stop - start], dtype=torch.int32, device=device),
            seq_lens=torch.tensor([stop], dtype=torch.int32, device=device),
        )
        shape = replace(
            parts.inputs.shape, num_tokens=stop - start, max_query_len=stop - start, is_fresh=start == 0,
            num_cached_tokens=start,
        )  # fmt: skip
        inputs = replace(parts.inputs, slot_mapping=parts.inputs.slot_mapping[start:stop], rows=rows, shape=shape)
        rope = parts.rope[0][start:stop], parts.rope[1][start:stop]
        part = replace(parts, inputs=inputs, qkv=parts.qkv[start:stop], rope=rope)
        found.append(attend(part, spec, backend))
    assert torch.equal(torch.cat(found), whole)
    assert torch.equal(parts.cache.view(torch.uint8), case.cache.view(torch.uint8))


def test_there_is_no_room_without_the_kernel(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "is_hopper", lambda device: False)
    assert TritonAttention(device, 8, 64, deterministic=False)._expanded_keys() is None
