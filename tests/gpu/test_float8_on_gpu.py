"""Float8 layers on a GPU: the GEMM against its twin, and whole models in graphs against the CPU."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[1]))
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.kernels import FLOAT8, DeferredNorm, LinearOp, bind_kernels, float8_linear, rms_norm
from octavo.kernels import scaled as twins
from octavo.kernels.linear import GATES, RoundingLinearOp
from octavo.kernels.triton.linear_stream import MAX_FLOAT8_ROWS
from octavo.platforms import CudaPlatform

PROMPTS = [[1, 5, 9, 33, 70, 2], [8] * 11, [100]]


needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs an H100 or H200; an H200 runs it",
)
SHAPES = [
    (4096, 1024, "none"),
    (1024, 2048, "none"),
    (6144, 1024, "silu"),
    (1024, 3072, "none"),
    (512, 12288, "none"),  # several parts of each sum
    (9216, 512, "none"),  # more tiles than multiprocessors
    (272, 528, "none"),
    (176, 336, "gelu_tanh"),
]
"""Weight rows, inputs and activation: those of small models, and sizes that no tile divides."""


def make_op(
    num_outputs: int, num_inputs: int, dtype: torch.dtype, *, has_bias: bool
) -> tuple[LinearOp, torch.Tensor, torch.Tensor]:
    """A GEMM, its weight in float64 and its bias, which is zero if it has none."""
    bind_kernels(CudaPlatform())
    generator = torch.Generator("cuda").manual_seed(0)
    wide = torch.randn(num_outputs, num_inputs, generator=generator, device="cuda") / num_inputs**0.5
    weight, scales = twins.quantize_rows.reference(wide)
    bias = torch.randn(num_outputs, generator=generator, device="cuda").to(dtype)
    op, is_copied = float8_linear(weight, scales[:, 0], bias if has_bias else None, deterministic=False)
    assert not is_copied
    return op, weight.double() * scales, bias.double() * has_bias


def make_rows(num_rows: int, num_inputs: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(num_rows, num_inputs, generator=generator, device="cuda").to(dtype)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The rows that are multiplied, in float64."""
    is_hopper = torch.cuda.get_device_capability() == (9, 0)
    if is_hopper and len(x) <= MAX_FLOAT8_ROWS and x.dtype is not torch.float32:
        return x.double()
    values, row_scales = twins.quantize_rows.reference(x)
    return values.double() * row_scales


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-2 if actual.dtype is torch.bfloat16 else 3e-3
    atol = tolerance * expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=atol)


@needs_hopper
@pytest.mark.parametrize(("num_outputs", "num_inputs", "activation"), SHAPES)
def test_the_gemm_of_a_normed_row(num_outputs: int, num_inputs: int, activation: str) -> None:
    op, weight, _ = make_op(num_outputs, num_inputs, torch.bfloat16, has_bias=False)
    x, residual = make_rows(2, num_inputs, torch.bfloat16).split(1)
    scale = 1 + make_rows(3, num_inputs, torch.bfloat16)[2] / 4
    norm = DeferredNorm(x, residual, scale, 1e-6)
    y = op.normed(norm, activation)
    assert y is not None
    assert torch.equal(norm.total, x + residual)
    expected = rms_norm.reference(norm.total, scale, 1e-6).double() @ weight.T
    check(y, expected if activation == "none" else GATES[activation](expected))


@needs_hopper
@pytest.mark.parametrize("num_rows", [9, 64, 200, 300])
@pytest.mark.parametrize(("num_outputs", "activation"), [(272, "none"), (512, "silu")])
def test_the_gemm_of_normed_rows(num_outputs: int, activation: str, num_rows: int) -> None:
    op, weight, _ = make_op(num_outputs, 1040, torch.bfloat16, has_bias=False)
    x, residual = make_rows(2 * num_rows, 1040, torch.bfloat16).split(num_rows)
    scale = 1 + make_rows(3, 1040, torch.bfloat16)[2] / 4
    total = x + residual
    for norm in (DeferredNorm(x, residual, scale, 1e-6), DeferredNorm(total, None, scale, 1e-6)):
        y = op.normed(norm, activation)
        assert y is not None
        assert torch.equal(norm.total, total)
        expected = rounded(rms_norm.reference(total, scale, 1e-6)) @ weight.T
        check(y, expected if activation == "none" else GATES[activation](expected))


@needs_hopper
@pytest.mark.parametrize("num_rows", [17, 64, 200, 256])
def test_the_gemm_that_rounds_for_the_next(num_rows: int) -> None:
    """Two GEMMs have the bits of those with a launch between them, after a norm, too."""
    dtype = torch.bfloat16
    first, _, _ = make_op(16384, 512, dtype, has_bias=True)
    second, _, _ = make_op(272, 8192, dtype, has_bias=False)
    assert isinstance(first, RoundingLinearOp) and isinstance(second, RoundingLinearOp)
    x = make_rows(num_rows, 512, dtype)
    between = first.gated_rounded(x, "silu")
    assert between is not None
    assert torch.equal(second.of_rounded(between), second(first.gated(x, "silu")))
    norms = [DeferredNorm(x, x.clone(), torch.ones(512, device="cuda", dtype=dtype), 1e-6) for _ in "ab"]
    between = first.gated_rounded(norms[0], "silu")
    gated = first.normed(norms[1], "silu")
    assert between is not None and gated is not None and torch.equal(norms[0].total, x + x)
    assert torch.equal(second.of_rounded(between), second(gated))


@needs_hopper
def test_rows_that_the_gemm_does_not_round() -> None:
    """A few, which are multiplied as they are; those of other types; and short ones, which a launch rounds sooner."""
    wide, _, _ = make_op(16384, 512, torch.bfloat16, has_bias=False)
    narrow, _, _ = make_op(8192, 512, torch.bfloat16, has_bias=False)
    assert isinstance(wide, RoundingLinearOp) and isinstance(narrow, RoundingLinearOp)
    assert wide.gated_rounded(make_rows(MAX_FLOAT8_ROWS, 512, torch.bfloat16), "silu") is None
    assert wide.gated_rounded(make_rows(64, 512, torch.float16), "silu") is None
    assert narrow.gated_rounded(make_rows(64, 512, torch.bfloat16), "silu") is None


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 3, 16, 33, 300])
def test_the_gemm_is_that_of_its_twin(num_rows: int, dtype: torch.dtype, has_bias: bool) -> None:
    op, weight, bias = make_op(256, 512, dtype, has_bias=has_bias)
    x = make_rows(num_rows, 512, dtype)
    expected = rounded(x) @ weight.T + bias
    check(op(x), expected)
    out = torch.empty(num_rows, 2, 256, dtype=dtype, device="cuda")[:, 1]
    assert torch.equal(op(x, out), op(x))
    check(op.gated(x, "silu"), GATES["silu"](expected))


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_outputs", "num_inputs", "activation"), SHAPES)
def test_gemms_of_few_rows(num_outputs: int, num_inputs: int, activation: str, dtype: torch.dtype) -> None:
    op, weight, bias = make_op(num_outputs, num_inputs, dtype, has_bias=num_inputs < 2048)
    for num_rows in (1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 100, 128, 130, 256, 257):
        x = make_rows(num_rows, num_inputs, dtype)
        expected = rounded(x) @ weight.T + bias
        if activation == "none":
            check(op(x), expected)
        else:
            check(op.gated(x, activation), GATES[activation](expected))


@needs_hopper
@pytest.mark.parametrize(("num_outputs", "num_inputs", "activation"), SHAPES)
def test_bits_of_a_row_do_not_depend_on_the_others(num_outputs: int, num_inputs: int, activation: str) -> None:
    op, _, _ = make_op(num_outputs, num_inputs, torch.bfloat16, has_bias=False)

    def apply(x: torch.Tensor) -> torch.Tensor:
        return op(x) if activation == "none" else op.gated(x, activation)

    # A single row may take a kernel of its own.
    for fewest, most in ((1, 1), (2, 8), (9, 16), (17, 32), (33, 64)):
        x = make_rows(most, num_inputs, torch.bfloat16)
        together = apply(x)
        assert torch.equal(apply(x[:fewest]), together[:fewest])
        x[0] = float("nan")
        beside = apply(x)
        assert beside[0].isnan().all()
        assert torch.equal(beside[1:], together[1:])


@needs_hopper
def test_rows_apart() -> None:
    op, weight, _ = make_op(272, 528, torch.bfloat16, has_bias=False)
    for num_rows in (3, 20):
        wide = make_rows(num_rows, 600, torch.bfloat16)
        for x in (wide[:, 16:544], wide[:, 1:529]):
            check(op(x), rounded(x) @ weight.T)


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_a_model_on_a_gpu_and_on_a_cpu(enforce_eager: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    settings = SETTINGS | {"quantization": "fp8"}
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    on_cpu = LLM(str(folder), **settings).generate(prompts, params)
    llm = LLM(str(folder), **(settings | {"device": "cuda", "enforce_eager": enforce_eager}))
    (stored,) = llm.apply_model(lambda model: [parameter.dtype for parameter in model.parameters()])
    assert stored.count(FLOAT8) == 8
    on_gpu = llm.generate(prompts, params)
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert ours.outputs[0].token_ids[:4] == theirs.outputs[0].token_ids[:4]


def test_updated_weights_take_effect(tmp_path: Path) -> None:
    folder, updated = write_model(tmp_path / "model"), tmp_path / "new"
    updated.mkdir()
    weights = load_file(folder / "model.safetensors")
    save_file({name: -1.5 * weight for name, weight in weights.items()}, updated / "model.safetensors")
    settings = SETTINGS | {"quantization": "fp8", "device": "cuda", "weight_update_dir": str(tmp_path)}
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def answers() -> list[list[int]]:
        return [list(answer.outputs[0].token_ids) for answer in llm.generate(prompts, params)]

    llm = LLM(str(folder), **settings)
    before = answers()
    llm.update_weights("new", "v2")
    assert answers() != before
    llm.update_weights()
    assert answers() == before
