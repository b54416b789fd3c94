"""Triton's kernels over keys and values of 8 bits, against the plain twin: what they store, and what they read."""

from dataclasses import dataclass, replace
from itertools import accumulate

import pytest
import torch
from attention_cases import NUM_NEEDLES, needles, needles_found

from octavo.kernels import (
    AttentionInputs,
    AttentionSpec,
    CacheScales,
    DeviceRows,
    HeadNorms,
    LatentSpec,
    ReferenceAttention,
    StepShape,
    latent_attention,
    store_latent,
)
from octavo.kernels.cache_scales import round_vectors, vector_scales
from octavo.kernels.triton import latent_attention as triton_latent
from octavo.kernels.triton import latent_store as triton_store
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.decode_attention import DecodeTile

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 8
# Chunks come after decoding rows: (tokens of the step, tokens after it).
STEPS = {
    "decode": [(1, 30), (1, 1), (1, 9)],
    "drafts": [(3, 30), (2, 9), (1, 20)],
    "chunks": [(5, 5), (20, 29)],
    "mixed": [(1, 12), (9, 9), (4, 19)],
}
LONG_STEPS = {
    "long": [(1, 300), (1, 17), (1, 130)],
    "long drafts": [(3, 300), (2, 17), (1, 130)],
    "long chunks": [(1, 70), (300, 377), (128, 256), (65, 600), (200, 200)],
    "long fresh": [(300, 300), (128, 128), (517, 517)],
    "one fresh": [(700, 700)],
    "far": [(1, 9), (3, 200), (2, 131), (9, 9)],
    "many": [(2, 2 + 5 * row % 19) for row in range(9)],
    "crowd": [(2, 2 + row % 17) for row in range(141)],
}
TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


@dataclass
class Case:
    """A step over a cache that holds the tokens before it."""

    inputs: AttentionInputs
    qkv: torch.Tensor
    cache: torch.Tensor
    scales: CacheScales
    rope: tuple[torch.Tensor, torch.Tensor]

    def copy(self) -> "Case":
        own = self.scales if self.scales.are_given else CacheScales(self.scales.values.clone(), are_given=False)
        return replace(self, qkv=self.qkv.clone(), cache=self.cache.clone(), scales=own)


def make_case(
    name: str,
    stored: torch.dtype,
    device: torch.device,
    *,
    are_given: bool,
    by_head: bool = False,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    size: int = SIZE,
    block_size: int = BLOCK,
) -> Case:
    random = torch.Generator().manual_seed(0)
    lengths = (STEPS | LONG_STEPS)[name]
    query_lens = [count for count, _ in lengths]
    decode_len = 3 if name.endswith("drafts") else 1
    num_decodes, num_tokens = sum(count <= decode_len for count in query_lens), sum(query_lens)
    width = -(-max(length for _, length in lengths) // block_size)
    tables = (torch.randperm(width * len(lengths), generator=random) + 1).view(len(lengths), width).int()
    num_blocks = tables.numel() + 1
    cache = torch.randn(2, num_blocks, KV_HEADS, block_size, size, generator=random)
    values = torch.rand(2, num_blocks, KV_HEADS, block_size, generator=random) * 0.02 + 0.001
    cache = (cache * 40).to(stored).to(device)
    scales = CacheScales(values.to(device), are_given=False)
    if are_given:
        given = torch.tensor([[0.01, 0.03], [0.02, 0.005]], device=device)
        scales = CacheScales.given(given if by_head else given[:, 0], cache)
    mapping = [
        int(tables[row, position // block_size]) * block_size + position % block_size
        for row, (count, length) in enumerate(lengths)
        for position in range(length - count, length)
    ]
    rows = DeviceRows(
        torch.tensor(
            [len(lengths), num_decodes, num_tokens, 9, sum(query_lens[:num_decodes])], dtype=torch.int32, device=device
        ),
        torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        torch.tensor([length for _, length in lengths], dtype=torch.int32, device=device),
    )
    num_cached = sum(length - count for count, length in lengths[num_decodes:])
    has_chunks = num_decodes < len(lengths)
    is_fresh = has_chunks and num_cached == 0
    shape = StepShape(
        len(lengths), num_tokens, max(query_lens), num_decodes > 0, has_chunks, is_fresh, decode_len, num_cached
    )
    inputs = AttentionInputs(
        tables.to(device), torch.arange(len(lengths), device=device), torch.tensor(mapping, device=device), block_size,
        KV_HEADS, KV_HEADS, window, rows, shape,
    )  # fmt: skip
    qkv = torch.randn(num_tokens, (HEADS + 2 * KV_HEADS) * size, generator=random).to(device, dtype)
    angles = torch.rand(num_tokens, 1, size // 2, generator=random).to(device) * 6
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    return Case(inputs, qkv, cache, scales, (cos, sin))


def stands_for(case: Case) -> torch.Tensor:
    return case.cache.float() * case.scales.values[..., None]


@pytest.mark.sample(8)
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("source", ["own", "given", "given by head"])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("name", STEPS)
def test_steps_equal_the_twin(
    name: str, stored: torch.dtype, source: str, window: int | None, softcap: float | None, device: torch.device
) -> None:
    case = make_case(name, stored, device, are_given=source != "own", by_head=source.endswith("head"), window=window)
    expected = case.copy()
    norms = HeadNorms(torch.rand(SIZE, device=device) + 0.5, torch.rand(SIZE, device=device) + 0.5, 1e-6)
    spec = AttentionSpec(HEADS, KV_HEADS, SIZE, 0.3, softcap)
    plain, ours = ReferenceAttention(), TritonAttention(device, 8, 64, deterministic=False)
    wanted = plain.run(expected.qkv, case.rope, norms, expected.cache, expected.inputs, spec, scales=expected.scales)
    found = ours.run(case.qkv, case.rope, norms, case.cache, case.inputs, spec, scales=case.scales)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert (stands_for(case) - stands_for(expected)).abs().max() < 1e-2, "a value may be rounded the other way"
    assert (case.cache.view(torch.uint8) != expected.cache.view(torch.uint8)).float().mean() < 1e-3


@pytest.mark.sample(9)
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("name", ["long", "long drafts"])
def test_steps_in_16_bits_equal_the_twin(
    name: str, stored: torch.dtype, dtype: torch.dtype, size: int, device: torch.device
) -> None:
    """Blocks as wide as a warp's part of a tile, contexts of several tiles."""
    case = make_case(name, stored, device, are_given=False, dtype=dtype, size=size, block_size=16)
    expected = case.copy()
    # Without a rotation, whose sums may round otherwise, keys are rounded to the same values.
    case.rope = torch.ones_like(case.rope[0]), torch.zeros_like(case.rope[1])
    spec = AttentionSpec(HEADS, KV_HEADS, size, 0.05)
    plain, ours = ReferenceAttention(), TritonAttention(device, 8, 512, deterministic=False)
    wanted = plain.run(expected.qkv, case.rope, None, expected.cache, expected.inputs, spec, scales=expected.scales)
    found = ours.run(case.qkv, case.rope, None, case.cache, case.inputs, spec, scales=case.scales)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("name", ["long", "long drafts"])
def test_the_smallest_values_count(name: str, stored: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
    """Values of the type that are subnormal, or a few units, as scales that were given may leave them."""
    case = make_case(name, stored, device, are_given=False, dtype=dtype, size=128, block_size=16)
    smallest = {torch.float8_e4m3fn: 2**-9, torch.float8_e5m2: 2**-16, torch.int8: 1.0}[stored]
    random = torch.Generator().manual_seed(1)
    case.cache.copy_((torch.randn(case.cache.shape, generator=random) * 2 * smallest).to(device, stored))
    case.scales.values.mul_(20 / smallest)
    expected = case.copy()
    case.rope = torch.ones_like(case.rope[0]), torch.zeros_like(case.rope[1])
    spec = AttentionSpec(HEADS, KV_HEADS, 128, 0.05)
    plain, ours = ReferenceAttention(), TritonAttention(device, 8, 512, deterministic=False)
    wanted = plain.run(expected.qkv, case.rope, None, expected.cache, expected.inputs, spec, scales=expected.scales)
    found = ours.run(case.qkv, case.rope, None, case.cache, case.inputs, spec, scales=case.scales)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    ("tile", "block_size"),
    [((64, 4, 2), 8), ((64, 4, 2), 32), ((128, 4, 2), 16), ((128, 2, 2), 16), ((32, 2, 3), 16)],
    ids=str,
)
@pytest.mark.parametrize("window", [None, 70, -100])
@pytest.mark.parametrize("name", ["long", "long drafts"])
def test_tiles_of_several_blocks_and_parts_of_one(
    name: str,
    window: int | None,
    tile: tuple[int, int, int],
    block_size: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads are no power of two; scales and values where no row has tokens are not numbers."""
    size, stored, dtype = 96, torch.float8_e4m3fn, torch.bfloat16
    case = make_case(
        name, stored, device, are_given=False, window=window, dtype=dtype, size=size, block_size=block_size
    )
    expected = case.copy()
    poison(case)
    case.rope = torch.ones_like(case.rope[0]), torch.zeros_like(case.rope[1])
    spec = AttentionSpec(HEADS, KV_HEADS, size, 0.05)
    monkeypatch.setattr(TritonAttention, "_tile", lambda *_: DecodeTile(*tile))
    plain, ours = ReferenceAttention(), TritonAttention(device, 8, 512, deterministic=False)
    wanted = plain.run(expected.qkv, case.rope, None, expected.cache, expected.inputs, spec, scales=expected.scales)
    found = ours.run(case.qkv, case.rope, None, case.cache, case.inputs, spec, scales=case.scales)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-3)


def poison(case: Case) -> None:
    """Make all that no row may read of a cache NaN: other blocks, and a last block's places beyond the row's tokens."""
    block_size = case.inputs.block_size
    is_free = torch.ones(case.cache.shape[1], block_size, dtype=torch.bool, device=case.cache.device)
    for table, length in zip(case.inputs.block_tables, case.inputs.rows.seq_lens.tolist(), strict=True):
        for position in range(length):
            is_free[table[position // block_size], position % block_size] = False
    free = is_free[None, :, None, :].expand(case.scales.values.shape)
    case.scales.values[free] = float("nan")
    case.cache.view(torch.uint8)[free] = 0x7F


@pytest.mark.parametrize("stored", TYPES)
def test_a_token_leaves_the_same_bytes_in_a_chunk_and_alone(stored: torch.dtype, device: torch.device) -> None:
    """Row 2 of the step is a chunk of four tokens; the last of them again as a row that decodes."""
    case = make_case("mixed", stored, device, are_given=False)
    spec = AttentionSpec(HEADS, KV_HEADS, SIZE, 0.3)
    attention = TritonAttention(device, 8, 64, deterministic=False)
    alone = case.copy()
    attention.run(case.qkv.clone(), case.rope, None, case.cache, case.inputs, spec, scales=case.scales)
    shape = StepShape(1, 1, 1, True, False, False)
    rows = DeviceRows(
        torch.tensor([1, 1, 1, 9, 1], dtype=torch.int32, device=device),
        torch.tensor([0, 1], dtype=torch.int32, device=device),
        case.inputs.rows.seq_lens[2:],
    )
    inputs = replace(
        case.inputs, slots=case.inputs.slots[2:], slot_mapping=case.inputs.slot_mapping[-1:], rows=rows, shape=shape
    )
    rope = case.rope[0][-1:], case.rope[1][-1:]
    attention.run(alone.qkv[-1:], rope, None, alone.cache, inputs, spec, scales=alone.scales)
    block, offset = divmod(int(inputs.slot_mapping[0]), BLOCK)
    left, right = (each.cache[:, block, :, offset].view(torch.uint8) for each in (case, alone))
    assert torch.equal(left, right)
    assert torch.equal(case.scales.values[:, block, :, offset], alone.scales.values[:, block, :, offset])


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_tokens", [1, 4])
@pytest.mark.parametrize("stored", TYPES)
def test_needles_in_a_long_context(stored: torch.dtype, num_tokens: int, device: torch.device) -> None:
    """Neither they nor the sum of what all others weigh are lost, decoding and in a chunk."""
    length = 1 << (17 if device.type == "cuda" else 12)
    queries, *vectors = (each.to(device) for each in needles(length, SIZE))
    order = torch.randperm(length // BLOCK, generator=torch.Generator().manual_seed(0))
    cache = torch.stack([each.view(-1, 1, BLOCK, SIZE)[order.argsort().to(device)] for each in vectors])
    values = vector_scales(cache, stored)
    rows, is_alone = range(length - num_tokens, length), num_tokens == 1
    places = torch.tensor([int(order[row // BLOCK]) * BLOCK + row % BLOCK for row in rows], device=device)
    inputs = AttentionInputs(
        order[None].int().to(device), torch.zeros(1, dtype=torch.int64, device=device), places, BLOCK, 1, 1, None,
        DeviceRows(
            torch.tensor([1, is_alone, num_tokens, 9, int(is_alone)], dtype=torch.int32, device=device),
            torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
            torch.tensor([length], dtype=torch.int32, device=device),
        ),
        StepShape(1, num_tokens, num_tokens, is_alone, not is_alone, False, 1),
    )  # fmt: skip
    qkv = torch.stack([torch.cat((queries.flatten(), vectors[0][row], vectors[1][row])) for row in rows])
    rope = torch.ones(num_tokens, 1, SIZE, device=device), torch.zeros(num_tokens, 1, SIZE, device=device)
    spec = AttentionSpec(NUM_NEEDLES, 1, SIZE, SIZE**-0.5)
    attention = TritonAttention(device, 1, length, deterministic=False)
    rounded, scales = round_vectors(cache, values, stored), CacheScales(values, are_given=False)
    found = attention.run(qkv, rope, None, rounded, inputs, spec, scales=scales)
    kept = (rounded.float() * values[..., None])[:, order.to(device)].view(2, length, SIZE).cpu()
    wanted = needles_found(queries.cpu(), *kept, num_tokens).flatten(1)
    torch.testing.assert_close(found.cpu().double().view_as(wanted), wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("are_given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_latent_steps_equal_the_twin(name: str, stored: torch.dtype, are_given: bool, device: torch.device) -> None:
    case = make_case(name, stored, device, are_given=are_given)
    random = torch.Generator().manual_seed(1)
    cache = case.cache[0, :, 0].contiguous()
    scales = CacheScales(case.scales.values[0, :, 0].contiguous(), are_given=are_given)
    if are_given:
        scales = CacheScales.given(torch.tensor([0.01], device=device), cache)
    twin, twin_scales = cache.clone(), CacheScales(scales.values.clone(), are_given=are_given)
    latent = torch.randn(len(case.qkv), SIZE, generator=random).to(device)
    q = torch.randn(len(case.qkv), HEADS, SIZE, generator=random).to(device)
    spec = LatentSpec(HEADS, 12, 4, 0.3)
    store_latent.reference(latent, twin, case.inputs.slot_mapping, twin_scales)
    triton_store.store_latent(latent, cache, case.inputs.slot_mapping, scales)
    assert torch.equal(cache.view(torch.uint8), twin.view(torch.uint8))
    wanted = latent_attention.reference(q, twin, case.inputs, spec, twin_scales)
    found = triton_latent.latent_attention(q, cache, case.inputs, spec, scales)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
