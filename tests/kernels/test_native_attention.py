"""Compiled paged attention, against the PyTorch references: rotation and storing, and attention over the cache."""

from dataclasses import dataclass, replace

import pytest
import torch
from attention_cases import NUM_NEEDLES, TERMS, Case, make_case, make_inputs, make_terms, needles, needles_found
from native_builds import threads
from visible_keys import first_key

from octavo.kernels import (
    NO_TERMS,
    AttentionInputs,
    AttentionSpec,
    CacheScales,
    HeadNorms,
    HeadTerms,
    ReferenceAttention,
    RopeTables,
)
from octavo.kernels.basic import qk_rope_store
from octavo.kernels.cache_scales import round_vectors, vector_scales
from octavo.kernels.cpu.attention import CpuAttentionPlan
from octavo.kernels.cpu.native_attention import NativeAttention
from octavo.platforms.native import CACHE_NUMBERS, TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
Lengths = list[tuple[int, int]]
MIXED: Lengths = [(1, 300), (37, 290), (5, 70), (1, 1), (3, 3)]


@dataclass
class Step:
    """What one layer gets in a step.

    Attributes:
        cache: ``[2, blocks, Hkv, block_size, D]`` with keys as they are, before the step.
    """

    inputs: AttentionInputs
    qkv: torch.Tensor
    rope: RopeTables
    norms: HeadNorms | None
    cache: torch.Tensor
    spec: AttentionSpec
    terms: HeadTerms = NO_TERMS
    scales: CacheScales | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        return len(self.qkv), self.spec.num_heads + 2 * self.spec.num_kv_heads, self.spec.head_dim


@dataclass
class Result:
    """Attended values of the step's tokens, rotated queries and keys, and the cache with keys as they are."""

    output: torch.Tensor
    qkv: torch.Tensor
    cache: torch.Tensor


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_step(
    lengths: Lengths,
    dtype: torch.dtype = torch.float32,
    *,
    rotary: int | None = None,
    norm_type: torch.dtype | None = None,
    num_padding: int = 0,
    block_size: int = 16,
    head_dim: int = 32,
    num_kv_heads: int = 2,
    ratio: int = 2,
    window: int | None = None,
    softcap: float | None = None,
    terms: str = "",
) -> Step:
    """A step of requests of (tokens, length after the step); with a type of norms, heads are normed."""
    case: Case = make_case(
        0,
        lengths,
        dtype=dtype,
        block_size=block_size,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        ratio=ratio,
        window=window,
        softcap=softcap,
    )
    num_tokens = sum(query_len for query_len, _ in lengths)
    places = torch.cat(
        [own_places(case.inputs, row, range(total - new, total)) for row, (new, total) in enumerate(lengths)]
    )
    case.inputs.slot_mapping = torch.cat((places, torch.full((num_padding,), -1)))
    num_rows = num_tokens + num_padding
    rotary = head_dim if rotary is None else rotary
    angles = 3 * random(1, num_rows, 1, rotary // 2)
    cos, sin = angles.cos(), angles.sin()
    rope = torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
    norms = None
    if norm_type is not None:
        norms = HeadNorms(random(2, head_dim).to(norm_type), random(3, head_dim).to(norm_type), 1e-5)
    width = (case.spec.num_heads + 2 * num_kv_heads) * head_dim
    qkv = random(4, num_rows, width).to(dtype)
    return Step(case.inputs, qkv, rope, norms, case.cache, case.spec, make_terms(terms, case.spec.num_heads))


def own_places(inputs: AttentionInputs, row: int, positions: range) -> torch.Tensor:
    """Where a row's tokens are in the cache."""
    at = torch.tensor(positions)
    return (
        inputs.block_tables[inputs.slots[row], at // inputs.block_size].long() * inputs.block_size
        + at % inputs.block_size
    )


def token_of(step: Step, row: int, token: int, position: int) -> Step:
    """A step that decodes one token of a request, the step's token number ``token``."""
    inputs = make_inputs(
        step.inputs.block_tables,
        step.inputs.slots[row : row + 1],
        [(1, position + 1)],
        step.inputs.block_size,
        step.inputs.num_kv_heads,
        step.inputs.window,
    )
    inputs.slot_mapping = step.inputs.slot_mapping[token : token + 1]
    cos, sin = step.rope
    rope = cos[token : token + 1], sin[token : token + 1]
    return replace(step, inputs=inputs, qkv=step.qkv[token : token + 1], rope=rope)


def run_reference(step: Step) -> Result:
    qkv, cache = step.qkv.clone().view(step.sizes), step.cache.clone()
    heads, kv_heads, norms = step.spec.num_heads, step.spec.num_kv_heads, step.norms
    weights = (None, None, 0.0) if norms is None else (norms.query, norms.key, norms.eps)
    qk_rope_store.reference(qkv, *weights, *step.rope, cache, step.inputs.slot_mapping, heads, kv_heads)
    attention = ReferenceAttention()
    output = attention.attend(qkv[:, :heads], cache, attention.plan(step.inputs, qkv.dtype), step.spec, step.terms)
    return Result(output.flatten(1), qkv, cache)


def run_native(native: NativeKernels, step: Step) -> Result:
    """In a cache of three layers whose blocks alternate; nothing else may be written in it."""
    layers = torch.full((step.cache.shape[1], 3, 2, *step.cache.shape[2:]), 7, dtype=step.cache.dtype)
    cache = layers[:, 1].transpose(0, 1)
    cache[0], cache[1] = transposed(step.cache[0]), step.cache[1]
    backend = NativeAttention(native)
    plan = backend.plan(step.inputs, step.qkv.dtype)
    assert not isinstance(plan, CpuAttentionPlan)
    qkv = step.qkv.clone()
    output = backend.run(qkv, step.rope, step.norms, cache, plan, step.spec, step.terms)
    assert (layers[:, ::2] == 7).all()
    return Result(output, qkv.view(step.sizes), torch.stack((as_they_are(cache[0]), cache[1])))


def transposed(keys: torch.Tensor) -> torch.Tensor:
    """``[blocks, Hkv, tokens, D]`` as the compiled kernels have them; see :class:`NativeAttention`."""
    if keys.dtype is torch.bfloat16:
        return keys.unflatten(-1, (-1, 2)).transpose(2, 3).reshape(keys.shape)
    return keys.transpose(2, 3).reshape(keys.shape)


def as_they_are(keys: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`transposed`."""
    size, head_dim = keys.shape[2:]
    if keys.dtype is torch.bfloat16:
        return keys.reshape(*keys.shape[:2], head_dim // 2, size, 2).transpose(2, 3).reshape(keys.shape)
    return keys.reshape(*keys.shape[:2], head_dim, size).transpose(2, 3)


def check(native: NativeKernels, step: Step) -> None:
    """Against the reference."""
    expected, result = run_reference(step), run_native(native, step)
    num_tokens = int(step.inputs.rows.counts[2])
    tolerance = TOLERANCE[step.qkv.dtype]
    for actual, wanted in (
        (result.output[:num_tokens], expected.output[:num_tokens]),
        (result.qkv[:num_tokens], expected.qkv[:num_tokens]),
        (result.cache, expected.cache),
    ):
        assert actual.dtype == wanted.dtype
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)
    is_written = torch.zeros(result.cache.shape[1] * step.inputs.block_size, dtype=torch.bool)
    is_written[step.inputs.slot_mapping[step.inputs.slot_mapping >= 0]] = True
    others = ~is_written.view(-1, step.inputs.block_size)
    assert torch.equal(result.cache.transpose(2, 3)[:, others], step.cache.transpose(2, 3)[:, others])


@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", TYPES)
def test_sizes_of_heads(native: NativeKernels, dtype: torch.dtype, head_dim: int) -> None:
    check(native, make_step([(1, 70), (9, 20), (2, 2)], dtype, head_dim=head_dim))


@pytest.mark.parametrize("rotary", [0, 2, 8, 16, 32, 48, 64])
@pytest.mark.parametrize("dtype", TYPES)
def test_parts_of_heads_are_rotated(native: NativeKernels, dtype: torch.dtype, rotary: int) -> None:
    check(native, make_step([(1, 9), (5, 7)], dtype, head_dim=64, rotary=rotary))


@pytest.mark.parametrize("norm_type", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_heads_are_normed(native: NativeKernels, dtype: torch.dtype, norm_type: torch.dtype) -> None:
    check(native, make_step([(1, 9), (5, 7)], dtype, head_dim=40, norm_type=norm_type))


@pytest.mark.parametrize("ratio", [1, 3, 7, 8, 71])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_groups_of_query_heads(native: NativeKernels, num_kv_heads: int, ratio: int) -> None:
    for num_threads in (1, 3):
        with threads(native, num_threads):
            check(native, make_step(MIXED, ratio=ratio, num_kv_heads=num_kv_heads, head_dim=16))


@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("dtype", TYPES)
def test_sizes_of_blocks(native: NativeKernels, dtype: torch.dtype, block_size: int) -> None:
    check(native, make_step(MIXED, dtype, block_size=block_size))


def test_blocks_of_other_sizes_are_pytorchs(native: NativeKernels) -> None:
    step = make_step(MIXED, block_size=12, terms="sinks and slopes")
    backend = NativeAttention(native)
    cache, plan = step.cache.clone(), backend.plan(step.inputs, torch.float32)
    output = backend.run(step.qkv.clone(), step.rope, step.norms, cache, plan, step.spec, step.terms)
    expected = run_reference(step)
    torch.testing.assert_close(output, expected.output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, expected.cache, rtol=1e-5, atol=1e-5)


@pytest.mark.sample(30)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [1, 5, 16, 100, 257, 1000, -1, -40, -256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_and_soft_caps(native: NativeKernels, dtype: torch.dtype, window: int, softcap: float | None) -> None:
    check(native, make_step([*MIXED, (1, 600)], dtype, window=window, softcap=softcap))


@pytest.mark.sample(30)
@pytest.mark.parametrize(("ratio", "head_dim"), [(1, 16), (3, 64), (5, 80), (7, 128)])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_terms_of_heads(native: NativeKernels, dtype: torch.dtype, terms: str, ratio: int, head_dim: int) -> None:
    """Over decoding rows, chunks and rows whose keys are split, whatever else changes scores."""
    rows = [*MIXED, (1, 600)]
    sizes = {"ratio": ratio, "head_dim": head_dim, "rotary": head_dim // 2, "terms": terms}
    check(native, make_step(rows, dtype, **sizes))
    check(native, make_step(rows, dtype, **sizes, window=40, softcap=2.0))


def test_a_sink_far_from_all_scores(native: NativeKernels) -> None:
    step = make_step([*MIXED, (1, 600)])
    for sink in (-torch.inf, -1000.0):
        terms = HeadTerms(sinks=torch.full((4,), sink))
        assert torch.equal(run_native(native, replace(step, terms=terms)).output, run_native(native, step).output)
    everything = HeadTerms(sinks=torch.full((4,), 1000.0))
    assert not run_native(native, replace(step, terms=everything)).output.any()


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_keys(native: NativeKernels, dtype: torch.dtype) -> None:
    totals = (1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1100)
    check(native, make_step([(1, total) for total in totals], dtype, head_dim=16))
    check(native, make_step([(min(total, 3), total) for total in totals], dtype, head_dim=16))


@pytest.mark.parametrize("lengths", [[(300, 300)], [(140, 600), (70, 70), (1, 1)], [(33, 256), (32, 257), (31, 256)]])
@pytest.mark.parametrize("window", [None, 130, -130])
def test_long_chunks(native: NativeKernels, lengths: Lengths, window: int | None) -> None:
    check(native, make_step(lengths, head_dim=16, window=window))


def test_padding_is_neither_stored_nor_read(native: NativeKernels) -> None:
    step = make_step(MIXED, num_padding=5)
    step.qkv[-5:] = torch.nan
    check(native, step)


def test_a_token_without_a_place_is_not_stored(native: NativeKernels) -> None:
    step = make_step([(1, 20), (4, 4)])
    step.inputs.slot_mapping[0] = -1
    check(native, step)


@pytest.mark.parametrize(
    ("window", "terms"), [(None, ""), (40, ""), (-24, ""), (9, "sinks"), (None, "sinks and slopes")]
)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_token_has_the_same_bits_in_every_step(
    native: NativeKernels, dtype: torch.dtype, window: int | None, terms: str
) -> None:
    """Decoded alone, in a chunk, in a batch, on any number of threads."""
    step = make_step(MIXED, dtype, ratio=3, window=window, terms=terms)
    together = run_native(native, step)
    for num_threads in (2, 4):
        with threads(native, num_threads):
            assert torch.equal(run_native(native, step).output, together.output)
    after = replace(step, cache=together.cache)
    token = 0
    for row, (query_len, seq_len) in enumerate(MIXED):
        for position in range(seq_len - query_len, seq_len):
            alone = run_native(native, token_of(after, row, token, position))
            assert torch.equal(alone.output[0], together.output[token])
            assert torch.equal(alone.cache, together.cache)
            token += 1


@pytest.mark.parametrize("window", [None, 20, -20])
@pytest.mark.parametrize("dtype", TYPES)
def test_what_no_request_sees_may_be_nan(native: NativeKernels, dtype: torch.dtype, window: int | None) -> None:
    step = make_step(MIXED, dtype, window=window)
    expected = run_native(native, step)
    cache = torch.full_like(step.cache, torch.nan)
    places = cache.transpose(2, 3).flatten(1, 2)  # a copy, by place
    for row, (query_len, seq_len) in enumerate(MIXED):
        first = first_key(seq_len - query_len, window)
        seen = own_places(step.inputs, row, range(first, seq_len))
        places[:, seen] = step.cache.transpose(2, 3).flatten(1, 2)[:, seen]
    cache = places.unflatten(1, (cache.shape[1], -1)).transpose(2, 3).contiguous()
    assert torch.equal(run_native(native, replace(step, cache=cache)).output, expected.output)


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_nan_stays_in_its_request(native: NativeKernels, dtype: torch.dtype, side: str) -> None:
    step = make_step(MIXED, dtype)
    expected = run_native(native, step)
    (place,) = own_places(step.inputs, 1, range(17, 18)).tolist()
    block, offset = divmod(place, step.inputs.block_size)
    step.cache[0 if side == "key" else 1, block, :, offset] = torch.nan
    output = run_native(native, step).output
    is_own = torch.arange(len(output)).sub(1).ge(0) & torch.arange(len(output)).lt(38)
    assert output[is_own].isnan().all()
    assert torch.equal(output[~is_own], expected.output[~is_own])


def test_a_plan_serves_all_layers(native: NativeKernels) -> None:
    step = make_step(MIXED)
    backend = NativeAttention(native)
    plan = backend.plan(step.inputs, torch.float32)
    for seed in (1, 2):
        layer = replace(step, qkv=random(seed, *step.qkv.shape))
        cache = layer.cache.clone()
        cache[0] = transposed(layer.cache[0])
        output = backend.run(layer.qkv.clone(), layer.rope, None, cache, plan, layer.spec)
        assert torch.equal(output, run_native(native, layer).output)


@pytest.mark.parametrize("terms", ["", "sinks and slopes"])
def test_a_replay_follows_the_steps_rows(native: NativeKernels, terms: str) -> None:
    """Where the rows are is on the tape, not how long they are."""
    step = make_step([(1, 254), (1, 20)], terms=terms)
    qkv, cache, rows = step.qkv.clone(), step.cache.clone(), step.inputs.rows
    cache[0] = transposed(step.cache[0])
    backend = NativeAttention(native)
    owners: list[object] = []
    native.start_tape(owners)
    plan = backend.plan(step.inputs, qkv.dtype)
    output = backend.run(qkv, step.rope, None, cache, plan, step.spec, step.terms)
    tape = native.end_tape()
    for seed in range(4):  # the first row's keys become two partitions on the way
        rows.seq_lens += 1
        for row, seq_len in enumerate(rows.seq_lens.tolist()):
            step.inputs.slot_mapping[row] = own_places(step.inputs, row, range(seq_len - 1, seq_len))
        step = replace(step, qkv=random(seed, *qkv.shape), cache=torch.stack((as_they_are(cache[0]), cache[1])))
        expected = run_native(native, step)
        qkv.copy_(step.qkv)
        native.replay(tape)
        assert torch.equal(output, expected.output)
        assert torch.equal(as_they_are(cache[0]), expected.cache[0])


STORED = list(CACHE_NUMBERS)
NEEDED = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
GIVEN = torch.tensor([0.02, 0.05])


def quantized(step: Step, stored: torch.dtype, *, are_given: bool = False, by_head: bool = False) -> Step:
    """The same over a cache of 8 bits, with scales of tokens and heads, the same for all, or for all of a head."""
    wide = step.cache.float()
    factors = torch.empty(wide.shape[:-1])
    given = GIVEN[:, None] * torch.arange(1.0, 1 + wide.shape[2]) if by_head else GIVEN
    scales = CacheScales.given(given, wide) if are_given else CacheScales(factors, are_given=False)
    if not are_given:
        factors.copy_(vector_scales(wide, stored))
    return replace(step, cache=round_vectors(wide, scales.values, stored), scales=scales)


def run_quantized(native: NativeKernels, step: Step) -> tuple[Result, torch.Tensor]:
    """In a cache whose blocks and scales lie apart, and the scales after the step; see :func:`run_native`."""
    assert step.scales is not None
    cache, values = step.cache.clone(), step.scales.values
    cache[0] = transposed(step.cache[0])
    wide = cache.transpose(0, 1).repeat_interleave(2, 0)[::2].transpose(0, 1)
    if not step.scales.are_given:
        values = values.transpose(0, 1).repeat_interleave(3, 0)[::3].transpose(0, 1)
    backend = NativeAttention(native)
    plan = backend.plan(step.inputs, step.qkv.dtype)
    assert not isinstance(plan, CpuAttentionPlan)
    qkv = step.qkv.clone()
    scales = CacheScales(values, step.scales.are_given)
    output = backend.run(qkv, step.rope, step.norms, wide, plan, step.spec, step.terms, scales)
    return Result(output, qkv.view(step.sizes), torch.stack((as_they_are(wide[0]), wide[1]))), values


@pytest.mark.sample(20)
@pytest.mark.parametrize("source", ["own scales", "given scales", "given scales of heads"])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", TYPES)
def test_quantized_caches(native: NativeKernels, dtype: torch.dtype, stored: torch.dtype, source: str) -> None:
    """The same bits in the cache as PyTorch's rounding, and attention over what they stand for."""
    are_given, by_head = source.startswith("given"), source.endswith("heads")
    for sizes in ({"window": 40, "softcap": 2.0, "terms": "sinks and slopes"}, {"head_dim": 40}, {"block_size": 48}):
        plain = make_step([*MIXED, (1, 600)], dtype, **sizes)
        step = quantized(plain, stored, are_given=are_given, by_head=by_head)
        found, scales = run_quantized(native, step)
        assert step.scales is not None
        values = scales if are_given else step.scales.values.clone()
        twin = replace(step, cache=step.cache.clone(), scales=CacheScales(values, are_given))
        heads = step.spec.num_heads
        attention = ReferenceAttention()
        plan = attention.plan(step.inputs, dtype)
        keys, queries = found.qkv[:, heads : heads + step.spec.num_kv_heads], found.qkv[:, :heads]
        attention.store(keys, found.qkv[:, heads + step.spec.num_kv_heads :], twin.cache, plan, twin.scales)
        assert torch.equal(found.cache.view(torch.int8), twin.cache.view(torch.int8))
        assert torch.equal(scales, values)
        wanted = attention.attend(queries.float(), twin.cache, plan, step.spec, step.terms, twin.scales)
        error = (found.output.float() - wanted.flatten(1)).abs().max() / wanted.abs().max()
        assert error < NEEDED[dtype]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_token_has_the_same_bits_over_a_quantized_cache(
    native: NativeKernels, dtype: torch.dtype, stored: torch.dtype
) -> None:
    step = quantized(make_step(MIXED, dtype, ratio=3, window=40), stored)
    together, values = run_quantized(native, step)
    with threads(native, 3):
        assert torch.equal(run_quantized(native, step)[0].output, together.output)
    after = replace(step, cache=together.cache, scales=CacheScales(values, are_given=False))
    token = 0
    for row, (query_len, seq_len) in enumerate(MIXED):
        for position in range(seq_len - query_len, seq_len):
            alone, _ = run_quantized(native, token_of(after, row, token, position))
            assert torch.equal(alone.output[0], together.output[token])
            token += 1


@pytest.mark.sample(4)
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", TYPES)
def test_needles_among_131072_tokens(
    native: NativeKernels, dtype: torch.dtype, stored: torch.dtype, num_rows: int
) -> None:
    """Neither they nor the sum of what all others weigh are lost, decoding and in a chunk."""
    length, size = 1 << 17, 16
    step = make_step([(num_rows, length)], dtype, head_dim=size, rotary=0, num_kv_heads=1, ratio=NUM_NEEDLES)
    queries, keys, values = needles(length, size)
    queries = queries.to(dtype)
    places = own_places(step.inputs, 0, range(length))
    cache = step.cache.float()
    for side, vectors in enumerate((keys, values)):
        cache[side].view(-1, size)[places] = vectors
    rows = range(length - num_rows, length)
    step.qkv.copy_(torch.stack([torch.cat((queries.flatten(), keys[row], values[row])) for row in rows]))
    step = quantized(replace(step, cache=cache), stored)
    assert step.scales is not None
    found, _ = run_quantized(native, step)
    stored_values = (step.cache.float() * step.scales.values[..., None]).flatten(1, 3)[:, places]
    wanted = needles_found(queries, *stored_values, num_rows).flatten(1)
    torch.testing.assert_close(found.output.double(), wanted, rtol=0, atol=max(NEEDED[dtype], 2e-4))


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_nan_stays_in_its_request_of_a_quantized_cache(native: NativeKernels, stored: torch.dtype) -> None:
    for are_given in (False, True):
        step = quantized(make_step([(4, 20), (3, 30)]), stored, are_given=are_given)
        step.qkv[0] = torch.nan
        is_nan = run_quantized(native, step)[0].output.isnan().any(-1)
        assert is_nan[:4].all()
        assert not is_nan[4:].any()
