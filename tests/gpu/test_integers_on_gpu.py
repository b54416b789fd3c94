"""Packed integers on a GPU: checkpoints and weights rounded at load, in graphs and without, against the CPU."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "quantization")]
from integer_checkpoints import draw, gptq, write_layers
from test_packed_float4 import write as write_float4
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.kernels import grouped
from octavo.kernels.grouped import GroupedTensors, round_weight
from octavo.kernels.triton.grouped import GroupedLinear
from octavo.layers.linear import Linear
from octavo.quantization.rounded import GROUPS, RoundedScheme
from octavo.quantization.stored import PackedScheme

PROMPTS = [[1, 5, 9, 33, 70, 2], [8] * 100, [100]]
PARAMS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, prompt_logprobs=0)


def schemes_of(llm: LLM) -> set[type]:
    (found,) = llm.apply_model(
        lambda model: {type(module.scheme) for module in model.modules() if isinstance(module, Linear)}
    )
    return found


def logprobs_of(llm: LLM) -> torch.Tensor:
    """The log-probabilities of the prompts' tokens; answers run, too, so that captured steps do."""
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS)
    assert all(len(answer.outputs[0].token_ids) == 16 for answer in answers)
    values = []
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        assert answer.prompt_logprobs is not None
        for token, entries in zip(prompt[1:], answer.prompt_logprobs[1:], strict=True):
            assert entries is not None
            values.append(entries[token].logprob)
    return torch.tensor(values)


@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"sym": False}, {"desc_act": True}, {"bits": 8}, {"group_size": 32}, {"group_size": -1}], ids=str
)
def test_checkpoints(changes: dict[str, Any], enforce_eager: bool, tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=256, intermediate_size=512)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False} | changes
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head":
            return None
        bits, group = config["bits"], config["group_size"]
        order = {"symmetric": config["sym"], "shuffled": config["desc_act"]}
        drawn = draw(shape, random, bits=bits, group=group, **order)
        drawn = drawn._replace(scales=drawn.scales / 4)
        return gptq(drawn), drawn.weight

    write_layers(source, tmp_path / "gptq", config, store)
    on_cpu = LLM(str(tmp_path / "gptq"), **SETTINGS)
    settings = SETTINGS | {"device": "cuda", "dtype": "bfloat16", "enforce_eager": enforce_eager}
    on_gpu = LLM(str(tmp_path / "gptq"), **settings)
    assert PackedScheme in schemes_of(on_gpu)
    # Activations are of bfloat16 in every layer.
    torch.testing.assert_close(logprobs_of(on_gpu), logprobs_of(on_cpu), rtol=0.05, atol=0.25)


@pytest.mark.parametrize("name", ["modelopt", "nf4"])
def test_floats_of_4_bits(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=256, intermediate_size=512)
    write_float4(name, source, tmp_path / "packed")
    on_cpu = LLM(str(tmp_path / "packed"), **SETTINGS)
    on_gpu = LLM(str(tmp_path / "packed"), **(SETTINGS | {"device": "cuda", "dtype": "bfloat16"}))
    assert PackedScheme in schemes_of(on_gpu)
    torch.testing.assert_close(logprobs_of(on_gpu), logprobs_of(on_cpu), rtol=0.05, atol=0.25)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounding_at_load(quantization: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=256, intermediate_size=512)
    settings = SETTINGS | {"device": "cuda", "dtype": "bfloat16"}
    rounded = LLM(str(source), quantization=quantization, **settings)
    assert RoundedScheme in schemes_of(rounded)
    found, plain = logprobs_of(rounded), logprobs_of(LLM(str(source), **settings))
    effect = (found - plain).abs().mean()
    if quantization == "int8":
        assert effect < 0.2
        return
    # Large logits magnify bfloat16's own rounding: so the error is held against what the weights' rounding changes.
    expected = logprobs_of(LLM(str(write_rounded(source, tmp_path / "rounded")), **settings))
    assert (found - expected).abs().mean() < 0.5 * effect


def write_rounded(source: Path, folder: Path) -> Path:
    """A model's folder again, with the values that its layers' weights stand for in INT4."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            values = round_weight(tensor.bfloat16(), "int4", GROUPS["int4"])
            tensors[name] = grouped.dequantize(values, torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    return folder


KINDS = {"plain": 128, "zeros": 128, "zeros-256": 256, "zeros-32": 32, "mxfp4": 32, "int8": 128, "float8": 256}


def weight_of(kind: str, num_outputs: int, num_inputs: int) -> GroupedTensors:
    """A random weight on the GPU, with the groups of :data:`KINDS`."""
    random = torch.Generator("cuda").manual_seed(0)
    bits = 8 if kind in ("int8", "float8") else 4
    codes = torch.randint(
        256, (num_outputs, num_inputs * bits // 8), generator=random, device="cuda", dtype=torch.uint8
    )
    groups = num_outputs, num_inputs // KINDS[kind]
    scales = (0.5 + torch.rand(groups, generator=random, device="cuda")) / (1 << bits)
    zeros = None
    if kind == "mxfp4":
        scales = torch.randint(122, 126, groups, generator=random, device="cuda", dtype=torch.uint8)
    elif kind == "float8":
        codes = torch.randn(num_outputs, num_inputs, generator=random, device="cuda").to(torch.float8_e4m3fn)
    elif kind.startswith("zeros"):
        zeros = torch.randint(129, groups, generator=random, device="cuda", dtype=torch.uint8)
    return GroupedTensors(codes, scales, zeros, bits)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Up to the rounding of the result, and of sums that cancel."""
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-2 and found.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(4096, 1024), (200, 768), (12_000, 512)], ids=str)
def test_gemms_against_the_twin(kind: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Rows at the borders of all kernels: twice, since the workspace must be left as it was found."""
    weight = weight_of(kind, *shape)
    values = grouped.dequantize(weight, torch.float64)
    bias = torch.randn(shape[0], device="cuda", dtype=dtype)
    op = GroupedLinear(weight, bias, deterministic=False)
    random = torch.Generator("cuda").manual_seed(1)
    for num_rows in (1, 3, 8, 9, 16, 17, 33, 64, 65, 130, 257):
        x = torch.randn(num_rows, shape[1], generator=random, device="cuda", dtype=dtype)
        expected = x.double() @ values.T + bias
        for _ in range(2):
            assert_close(op(x), expected)
        gate, up = expected.chunk(2, 1)
        assert_close(op.gated(x, "silu"), F.silu(gate) * up)


def test_updated_weights() -> None:
    weight = weight_of("zeros", 320, 1024)
    op = GroupedLinear(weight, None, deterministic=False)
    x = torch.randn(40, 1024, device="cuda", dtype=torch.bfloat16)
    op(x)
    weight.scales.mul_(0.25)
    weight.codes.bitwise_not_()
    op.refresh()
    for num_rows in (1, 16, 40):
        assert_close(op(x[:num_rows]), x[:num_rows].double() @ grouped.dequantize(weight, torch.float64).T)


@pytest.mark.parametrize("kind", ["zeros", "mxfp4", "int8"])
def test_a_rows_bits_do_not_depend_on_its_neighbours(kind: str) -> None:
    op = GroupedLinear(weight_of(kind, 320, 1024), None, deterministic=True)
    x = torch.randn(130, 1024, device="cuda", dtype=torch.bfloat16)
    y = op(x)
    for num_rows in (1, 9, 40, 100):
        assert torch.equal(op(x[:num_rows]), y[:num_rows])
