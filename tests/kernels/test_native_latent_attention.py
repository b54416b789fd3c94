"""Compiled latent attention against attention over whole sequences in float64."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from mixer_cases import LatentCase, Lengths, alone, latent_case
from native_builds import operations_of, threads

from octavo.kernels import CacheScales, latent_attention, store_latent
from octavo.kernels.cache_scales import round_vectors, vector_scales
from octavo.kernels.cpu import native_latent_attention
from octavo.platforms.native import CACHE_NUMBERS, TYPE_NUMBERS, NativeKernels

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
MIXED: Lengths = [(1, 300), (37, 290), (5, 70), (1, 1), (3, 3), (2, 600)]


@pytest.fixture
def latent(native: NativeKernels) -> SimpleNamespace:
    """This build's operations by name."""
    operations = {"store_latent": store_latent, "latent_attention": latent_attention}
    return operations_of(native, native_latent_attention.register, operations)


def make(lengths: Lengths, **options: object) -> LatentCase:
    """A case with slots of the engine's type."""
    case = latent_case(lengths, **options)
    return replace(case, inputs=replace(case.inputs, slots=case.inputs.slots.int()))


def run(latent: SimpleNamespace, case: LatentCase) -> torch.Tensor:
    latent.store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    return latent.latent_attention(case.q, case.cache, case.inputs, case.spec, **case.options)


def check(latent: SimpleNamespace, case: LatentCase) -> None:
    """Results and cache; padding becomes zero."""
    stored = case.cache.clone()
    store_latent.reference(case.latent, stored, case.inputs.slot_mapping)
    output, dtype = run(latent, case), case.q.dtype
    assert torch.equal(case.cache.nan_to_num(7.0), stored.nan_to_num(7.0))
    assert output.dtype is dtype
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(output[: len(case.expected)].double(), case.expected, **tolerance)
    assert not output[len(case.expected) :].any()


@pytest.mark.sample(30)
@pytest.mark.parametrize("num_padding", [0, 3])
@pytest.mark.parametrize("lengths", [[(1, 1)], [(5, 5)], [(1, 9), (1, 1), (1, 40)], MIXED])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_step_attends_to_its_sequences(
    latent: SimpleNamespace, dtype: torch.dtype, lengths: Lengths, num_padding: int
) -> None:
    for num_threads in (1, 3):
        with threads(latent.native, num_threads):
            check(latent, make(lengths, num_padding=num_padding, dtype=dtype))


@pytest.mark.parametrize(
    ("num_heads", "rank", "rope_dim"), [(1, 1, 2), (16, 16, 16), (5, 20, 6), (128, 64, 8), (67, 8, 4)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_of_vectors(
    latent: SimpleNamespace, dtype: torch.dtype, num_heads: int, rank: int, rope_dim: int
) -> None:
    lengths = [(1, 70), (9, 20), (2, 300)]
    check(latent, make(lengths, num_heads=num_heads, rank=rank, rope_dim=rope_dim, dtype=dtype))


@pytest.mark.parametrize("block_size", [1, 7, 16, 48])
def test_sizes_of_blocks(latent: SimpleNamespace, block_size: int) -> None:
    check(latent, make(MIXED, block_size=block_size))


def test_numbers_of_keys(latent: SimpleNamespace) -> None:
    totals = (1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513)
    check(latent, make([(1, total) for total in totals]))
    check(latent, make([(min(total, 3), total) for total in totals]))


@pytest.mark.sample(30)
@pytest.mark.parametrize("num_chosen", [None, 1, 7, 300])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("num_heads", [3, 67])
@pytest.mark.parametrize("dtype", TYPES)
def test_sinks_and_chosen_tokens(
    latent: SimpleNamespace, dtype: torch.dtype, num_heads: int, has_sinks: bool, num_chosen: int | None
) -> None:
    options = {"has_sinks": has_sinks, "num_chosen": num_chosen, "num_heads": num_heads, "dtype": dtype}
    for lengths in ([(1, 9), (1, 1), (1, 400)], MIXED):  # few tokens, whose positions threads divide, and more
        for num_threads in (1, 3):
            with threads(latent.native, num_threads):
                check(latent, make(lengths, num_padding=2, **options))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_token_over_chosen_ones_has_the_same_bits_in_every_step(latent: SimpleNamespace, dtype: torch.dtype) -> None:
    case = make(MIXED, num_heads=5, has_sinks=True, num_chosen=290, dtype=dtype)
    together = run(latent, case)
    assert case.chosen is not None
    for token, (row, position) in enumerate(case.step.tokens()):
        own = slice(token, token + 1)
        output = latent.latent_attention(
            case.q[own],
            case.cache,
            alone(case.inputs, row, position),
            case.spec,
            sinks=case.sinks,
            chosen=case.chosen[own],
        )
        assert torch.equal(output[0], together[token])


def test_chosen_tokens_that_are_all_have_the_bits_of_no_choice(latent: SimpleNamespace) -> None:
    """So a model's text does not change where its prompt becomes longer than what is chosen."""
    case = make([(37, 290), (1, 300), (2, 600)], num_heads=5)
    chosen = torch.full((len(case.q), 601), -1, dtype=torch.int32)
    for token, (_, position) in enumerate(case.step.tokens()):
        chosen[token, : position + 1] = torch.arange(position + 1)
    expected = run(latent, case)
    assert torch.equal(latent.latent_attention(case.q, case.cache, case.inputs, case.spec, chosen=chosen), expected)


def test_types_that_the_kernels_lack_run_as_the_reference(latent: SimpleNamespace) -> None:
    case = make([(1, 9), (5, 12)], dtype=torch.float64)
    output = run(latent, case)
    assert torch.equal(output, latent_attention.reference(case.q, case.cache, case.inputs, case.spec))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_token_has_the_same_bits_in_every_step(latent: SimpleNamespace, dtype: torch.dtype) -> None:
    """Decoded alone, in a chunk, in a batch, on any number of threads."""
    case = make(MIXED, dtype=dtype, num_heads=5)
    together = run(latent, case)
    for num_threads in (2, 4):
        with threads(latent.native, num_threads):
            assert torch.equal(run(latent, case), together)
    for token, (row, position) in enumerate(case.step.tokens()):
        inputs = alone(case.inputs, row, position)
        output = latent.latent_attention(case.q[token : token + 1], case.cache, inputs, case.spec)
        assert torch.equal(output[0], together[token])


def test_a_nan_stays_in_its_request(latent: SimpleNamespace) -> None:
    case = make(MIXED)
    expected = run(latent, case)
    case.cache[case.step.block(1, 17), 17 % 4] = torch.nan
    output = latent.latent_attention(case.q, case.cache, case.inputs, case.spec)
    is_own = torch.tensor([row == 1 for row, _ in case.step.tokens()])
    assert output[is_own].isnan().all()
    assert torch.equal(output[~is_own], expected[~is_own])


def test_a_replay_follows_the_steps_rows(latent: SimpleNamespace) -> None:
    """Where the rows are is on the tape, not how long they are."""
    case = make([(1, 259), (1, 20)])
    owners: list[object] = []
    run(latent, case)  # with the keys of the longest rows below
    case.inputs.rows.seq_lens -= 5
    latent.native.start_tape(owners)
    output = latent.latent_attention(case.q, case.cache, case.inputs, case.spec)
    tape = latent.native.end_tape()
    for _ in range(5):  # the first row's keys become two partitions on the way
        case.inputs.rows.seq_lens += 1
        latent.native.replay(tape)
        assert torch.equal(output, latent.latent_attention(case.q, case.cache, case.inputs, case.spec))


@pytest.mark.sample(16)
@pytest.mark.parametrize("are_given", [False, True], ids=["own scales", "given scales"])
@pytest.mark.parametrize("stored", list(CACHE_NUMBERS))
@pytest.mark.parametrize("dtype", TYPES)
def test_quantized_caches(latent: SimpleNamespace, dtype: torch.dtype, stored: torch.dtype, *, are_given: bool) -> None:
    """The same bits in the cache as PyTorch's rounding, and a token's bits in every step."""
    case = make(MIXED, dtype=dtype, num_heads=5)
    wide = case.cache.float()
    scales = CacheScales.given(torch.tensor([0.03]), wide)
    if not are_given:
        scales = CacheScales(vector_scales(wide, stored), are_given=False)
    cache = round_vectors(wide.nan_to_num(), scales.values, stored)
    twin, twin_scales = cache.clone(), CacheScales(scales.values.clone(), are_given)
    store_latent.reference(case.latent, twin, case.inputs.slot_mapping, twin_scales)
    latent.store_latent(case.latent, cache, case.inputs.slot_mapping, scales)
    assert torch.equal(cache.view(torch.int8), twin.view(torch.int8))
    assert torch.equal(scales.values.nan_to_num(7.0), twin_scales.values.nan_to_num(7.0))
    together = latent.latent_attention(case.q, cache, case.inputs, case.spec, scales)
    wanted = latent_attention.reference(case.q.float(), twin, case.inputs, case.spec, twin_scales)
    error = (together.float() - wanted).abs().max() / wanted.abs().max()
    assert error < TOLERANCE[dtype]
    for token, (row, position) in enumerate(case.step.tokens()):
        inputs = alone(case.inputs, row, position)
        output = latent.latent_attention(case.q[token : token + 1], cache, inputs, case.spec, scales)
        assert torch.equal(output[0], together[token])
