"""Compiled experts and the choice of them, against their plain twins in PyTorch."""

import itertools

import pytest
import torch
from block_rows import random_rows
from native_builds import threads

from octavo.kernels.block_experts import BlockExperts, BlockMatrices, PlainBlockExperts, make_block_experts
from octavo.kernels.blocks import FORMATS
from octavo.kernels.cpu import native_experts
from octavo.kernels.cpu.native_blocks import NativeBlocks
from octavo.kernels.cpu.native_experts import NativeExperts
from octavo.kernels.experts import ExpertsOp, ExpertWeights, PlainExperts, make_experts
from octavo.kernels.routing import choose_experts
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels
from octavo.platforms.recording import Recording
from octavo.quantization.blocks import MADE_AT_LOAD
from octavo.records.experts import ExpertSpec, Routing

TYPES = list(TYPE_NUMBERS)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
NUM_EXPERTS = 5
SILU = ExpertSpec("silu")
SPECS = {
    "silu": SILU,
    "gelu": ExpertSpec("gelu_tanh"),
    "weighs inputs": ExpertSpec("silu", weighs_inputs=True),
    "clamped swiglu": ExpertSpec("clamped_swiglu", 1.7, 0.8),
    "clamped silu": ExpertSpec("clamped_silu", limit=0.8),
    "swiglu step": ExpertSpec("swiglu_step", limit=0.8),
}


@pytest.fixture(autouse=True)
def registered(native: NativeKernels) -> None:
    """The build's kernels in the place of those that Octavo chose."""
    native_experts.register(native)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_weights(hidden: int, size: int, dtype: torch.dtype, *, bias: bool) -> ExpertWeights:
    return ExpertWeights(
        random(0, NUM_EXPERTS, 2 * size, hidden, dtype=dtype) * hidden**-0.5,
        random(1, NUM_EXPERTS, hidden, size, dtype=dtype) * size**-0.5,
        random(2, NUM_EXPERTS, 2 * size, dtype=dtype) if bias else None,
        random(3, NUM_EXPERTS, hidden, dtype=dtype) if bias else None,
    )


def choose(num_tokens: int, num_chosen: int, num_experts: int = NUM_EXPERTS) -> tuple[torch.Tensor, torch.Tensor]:
    """Some experts get no token, others most of them."""
    chosen = (random(4, num_tokens, num_experts) + 1.5 * torch.arange(num_experts)).topk(num_chosen).indices
    return chosen, random(5, num_tokens, num_chosen).softmax(-1)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance * scale)


def assert_independent(run: ExpertsOp, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> None:
    """A token's bits are the same alone, beside some others, and beside all."""
    y = run(x, chosen, shares)
    for token in range(0, len(x), 5):
        some = slice(token, token + 1 + token % 7)
        assert torch.equal(run(x[some], chosen[some], shares[some]), y[some])


@pytest.mark.parametrize("num_tokens", [1, 3, 70])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("hidden", "size"), [(64, 96), (33, 40), (128, 32)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.sample(30)
def test_values(
    native: NativeKernels, dtype: torch.dtype, hidden: int, size: int, bias: bool, name: str, num_tokens: int
) -> None:
    weights = make_weights(hidden, size, dtype, bias=bias)
    chosen, shares = choose(num_tokens, 2)
    x = random(6, num_tokens, hidden, dtype=dtype)
    in_double = (None if part is None else part.double() for part in weights)
    expected = PlainExperts(ExpertWeights(*in_double), SPECS[name])(x.double(), chosen, shares)  # type: ignore[arg-type]
    run = make_experts(weights.gate_up, weights, SPECS[name])
    assert isinstance(run, NativeExperts)
    close(run(x, chosen, shares), expected)
    assert_independent(run, x, chosen, shares)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("num_chosen", [1, 4])
def test_any_number_of_threads_gives_the_same_bits(native: NativeKernels, num_chosen: int, count: int) -> None:
    weights = make_weights(64, 96, torch.bfloat16, bias=True)
    run = make_experts(weights.gate_up, weights, SILU)
    chosen, shares = choose(150, num_chosen)
    x = random(6, 150, 64, dtype=torch.bfloat16)
    with threads(native, 1):
        expected = run(x, chosen, shares)
    with threads(native, count):
        assert torch.equal(run(x, chosen, shares), expected)


def test_one_expert_for_all_tokens_and_twice_for_one(native: NativeKernels) -> None:
    weights = make_weights(64, 96, torch.float32, bias=False)
    shares = random(5, 40, 2).softmax(-1)
    chosen = torch.full((40, 2), 3)
    expected = PlainExperts(weights, SILU)(random(6, 40, 64), chosen, shares)
    close(make_experts(weights.gate_up, weights, SILU)(random(6, 40, 64), chosen, shares), expected)


def test_large_batches_are_computed_in_parts(native: NativeKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights(64, 96, torch.float32, bias=False)
    run = make_experts(weights.gate_up, weights, SILU)
    (chosen, shares), x = choose(70, 2), random(6, 70, 64)
    expected = run(x, chosen, shares)
    monkeypatch.setattr(native_experts, "_WORKSPACE_BYTES", 20000)
    assert torch.equal(run(x, chosen, shares), expected)


def test_nans_stay_in_their_token(native: NativeKernels) -> None:
    for name in ("silu", "clamped swiglu", "clamped silu"):
        weights = make_weights(64, 96, torch.float32, bias=False)
        run = make_experts(weights.gate_up, weights, SPECS[name])
        (chosen, shares), x = choose(9, 2), random(6, 9, 64)
        expected = run(x, chosen, shares)
        x[4, 7] = float("nan")
        y = run(x, chosen, shares)
        others = [token for token in range(9) if token != 4]
        assert y[4].isnan().all() and torch.equal(y[others], expected[others])


def pack(native: NativeKernels, name: str, seed: int, num_outputs: int, num_inputs: int) -> BlockMatrices:
    blocks = NativeBlocks(native)
    experts = []
    for own in range(seed, seed + NUM_EXPERTS):
        if name in MADE_AT_LOAD:
            values = random(own, num_outputs, num_inputs) * num_inputs**-0.5
            experts.append(blocks.quantize(values, name))
        else:
            experts.append(blocks.pack(random_rows(name, num_outputs, num_inputs, own), name, num_inputs))
    return BlockMatrices(torch.stack(experts), name, num_inputs)


@pytest.mark.sample(24)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_blocks(native: NativeKernels, name: str, dtype: torch.dtype) -> None:
    unit = FORMATS[name].unit
    hidden, size = (256, 256) if unit > 32 else (96, 64)
    biases = random(2, NUM_EXPERTS, 2 * size, dtype=dtype), random(3, NUM_EXPERTS, hidden, dtype=dtype)
    down = "Q6_K" if name == "Q4_K" else name  # as llama.cpp mixes them
    weights = BlockExperts(pack(native, name, 0, 2 * size, hidden), pack(native, down, 9, hidden, size), *biases)
    (chosen, shares), x = choose(40, 2), random(6, 40, hidden, dtype=dtype)
    x[::3, 40] *= 30  # large values, whose groups are rounded to finer steps in those rows
    for spec in (SILU, SPECS["clamped swiglu"], SPECS["weighs inputs"]):
        run = make_block_experts(weights.gate_up.packed, weights, spec)
        assert isinstance(run, NativeExperts)
        y, expected = run(x, chosen, shares), PlainBlockExperts(weights, spec)(x, chosen, shares)
        # What enters the second GEMM may be rounded to the next code if it lies between two.
        tolerance = max(TOLERANCE[dtype], 1e-2)
        scale = float(expected.abs().max())
        torch.testing.assert_close(y.double() / scale, expected.double() / scale, rtol=0, atol=tolerance)
        assert_independent(run, x, chosen, shares)


def test_a_tape_orders_its_pairs_anew(native: NativeKernels) -> None:
    """What is replayed reads the experts that the router chose this time."""
    weights = make_weights(64, 96, torch.bfloat16, bias=True)
    run = make_experts(weights.gate_up, weights, SILU)
    x = random(6, 3, 64, dtype=torch.bfloat16)
    logits = random(7, 3, NUM_EXPERTS)
    routing = Routing(NUM_EXPERTS, 2, renormalises=True)
    with Recording(native) as recording:
        chosen, shares = choose_experts(logits, None, routing)
        y = run(x, chosen, shares)
    assert not recording.others
    for seed in range(5):
        logits.copy_(random(seed, 3, NUM_EXPERTS) * (1 + seed))
        x.copy_(random(seed + 20, 3, 64))
        recording.replay()
        assert torch.equal(chosen, choose_experts(logits, None, routing)[0])
        assert torch.equal(y, run(x, *choose_experts(logits, None, routing)))


ROUTINGS = {
    "softmax": Routing(12, 3),
    "renormalised": Routing(12, 3, renormalises=True, scale=2.5),
    "sigmoid": Routing(12, 4, "sigmoid", renormalises=True),
    "corrected": Routing(12, 4, "sigmoid", is_corrected=True),
    "groups": Routing(12, 4, "sigmoid", is_corrected=True, num_groups=4, num_open_groups=2, num_ranked=2),
    "softmax groups": Routing(32, 5, num_groups=8, num_open_groups=3),
    "mixer": Routing(12, 2, "sparsemixer", jitter=0.01),
    "wide mixer": Routing(40, 2, "sparsemixer", jitter=0.5),
    "uniform": Routing(12, 3, "uniform", renormalises=True),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_choices(native: NativeKernels, name: str) -> None:
    routing = ROUTINGS[name]
    logits = 3 * random(0, 41, routing.num_experts)
    correction = random(1, routing.num_experts) if routing.is_corrected else None
    expected, expected_shares = choose_experts.reference(logits, correction, routing)
    chosen, shares = choose_experts(logits, correction, routing)
    assert torch.equal(chosen, expected) and chosen.dtype is torch.int64
    torch.testing.assert_close(shares, expected_shares, rtol=1e-5, atol=1e-6)
    for token in (0, 7, 40):
        alone = choose_experts(logits[token : token + 1], correction, routing)
        assert torch.equal(alone[0][0], chosen[token]) and torch.equal(alone[1][0], shares[token])


@pytest.mark.parametrize("name", ROUTINGS)
def test_choices_without_numbers_are_experts_all_the_same(native: NativeKernels, name: str) -> None:
    routing = ROUTINGS[name]
    correction = torch.zeros(routing.num_experts) if routing.is_corrected else None
    for value, place in itertools.product((float("nan"), float("inf"), float("-inf")), (slice(None), slice(2, 5))):
        logits = random(0, 4, routing.num_experts)
        logits[1, place] = value
        chosen, _ = choose_experts(logits, correction, routing)
        assert ((chosen >= 0) & (chosen < routing.num_experts)).all()
        assert all(len(set(row)) == routing.num_chosen for row in chosen.tolist())
