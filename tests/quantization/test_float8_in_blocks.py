"""Float8 weights on CPUs, whose kernels multiply integers: rounded once more, to 8 bits in groups of 32 inputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import layers_of
from float8_checkpoints import float8_layer
from integer_checkpoints import write_layers
from test_block_experts import CPU, rounded
from test_float8_blocks import FP8, draw
from test_formats import by_channel, fbgemm, mxfp8
from test_packed_float4 import fill
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.kernels.block_experts import dequantize_expert
from octavo.kernels.blocks import round_inputs
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.layers.linear import Linear
from octavo.parallel import TensorParallel
from octavo.platforms.native import native_kernels
from octavo.quantization.blocks import BlockScheme
from octavo.quantization.expert_matrices import BlockMatrix
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.resolve import parsed_quantization
from octavo.quantization.scheme import LinearScheme, PlainScheme
from octavo.quantization.stored import ExpandedScheme, RepackedScheme
from octavo.records.experts import ExpertSpec, SeparateExperts

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


def in_blocks(shape: tuple[int, int], random: torch.Generator) -> Stored:
    values, scales, weight = draw(shape, random)
    return {"weight": values, "weight_scale_inv": scales}, weight


FORMATS: dict[str, tuple[dict[str, Any], Any]] = {
    "tensor": ({"quant_method": "fp8"}, float8_layer),
    "output": ({"quant_method": "fbgemm_fp8"}, fbgemm),
    "blocks": (FP8, in_blocks),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, by_channel),
    "mxfp8": ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, mxfp8),
}


def build_of(name: str, parallel: TensorParallel | None = None) -> Build:
    config = FORMATS[name][0]
    own = {} if parallel is None else {"tensor_parallel": parallel}
    return Build(parsed_quantization(config["quant_method"], config, CPU), **own)


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert float((found - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("name", FORMATS)
def test_layers(name: str) -> None:
    """Parts of one layer with scales of their own; twice, as weights are updated."""
    sizes = {"gate_proj": 48, "up_proj": 32}
    layer = build_of(name).linear("layer", 192, sizes)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, RepackedScheme)
    assert layer.scheme.stored_as == "int8" and layer.weight.nbytes == 80 * 192 * 17 // 16
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 192, generator=random)
    for _ in range(2):
        drawn = {part: FORMATS[name][1]((size, 192), random) for part, size in sizes.items()}
        fill(layer, {part: tensors for part, (tensors, _) in drawn.items()})
        weight = torch.cat([weight for _, weight in drawn.values()])
        assert_near(layer(x), round_inputs(x) @ rounded("int8", weight).T, 1e-4)
        assert_near(rounded("int8", weight), weight, 0.01)  # float8 itself is off by 2.5 %


@pytest.mark.parametrize("name", FORMATS)
def test_devices_divide_inputs(name: str) -> None:
    tensors, weight = FORMATS[name][1]((32, 192), torch.Generator().manual_seed(0))
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(3, 32)
    for rank in range(3):
        layer = build_of(name, TensorParallel(rank, 3)).linear("layer", 192, 32, split="row")
        assert isinstance(layer, Linear) and isinstance(layer.scheme, RepackedScheme)
        fill(layer, {"layer": tensors})
        total += Linear.forward(layer, x.chunk(3, 1)[rank])  # without the sum over devices
    assert_near(total, x @ weight.T, 0.02)


@pytest.mark.parametrize(("name", "num_inputs"), [("tensor", 40), ("blocks", 72)])
def test_other_sizes_are_expanded(name: str, num_inputs: int) -> None:
    tensors, weight = FORMATS[name][1]((32, num_inputs), torch.Generator().manual_seed(0))
    layer = build_of(name).linear("layer", num_inputs, 32)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, ExpandedScheme)
    fill(layer, {"layer": tensors})
    x = torch.randn(3, num_inputs, generator=torch.Generator().manual_seed(1))
    assert_near(layer(x), x @ weight.T, 1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_experts(name: str) -> None:
    build, storage = build_of(name), SeparateExperts()
    form = build.expert_form(storage, 2)
    experts = Experts(2, 64, 96, ExpertSpec("silu"), storage, TensorParallel(), layouts=build.layout, form=form)
    assert experts.stored_as == "int8"
    random, weights = torch.Generator().manual_seed(0), {}
    slots = dict(experts.weight_slots("experts"))
    for index in range(2):
        for layer, shape in (("gate_proj", (96, 64)), ("up_proj", (96, 64)), ("down_proj", (64, 96))):
            tensors, weights[index, layer] = FORMATS[name][1](shape, random)
            for leaf, tensor in tensors.items():
                if f"experts.{index}.{layer}.{leaf}" in slots:
                    slots[f"experts.{index}.{layer}.{leaf}"].fill(tensor)
    for matrix, layers in ((experts._gate_up, ("gate_proj", "up_proj")), (experts._down, ("down_proj",))):
        assert isinstance(matrix, BlockMatrix)
        for index in range(2):
            expected = torch.cat([rounded("int8", weights[index, layer]) for layer in layers])
            torch.testing.assert_close(dequantize_expert(matrix.tensors, index), expected, rtol=1e-3, atol=1e-4)


def logprobs_of(llm: LLM) -> torch.Tensor:
    """The log-probabilities of a prompt's tokens."""
    prompt = [(7 * index) % 300 for index in range(60)]
    (answer,) = llm.generate([{"prompt_token_ids": prompt}], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert answer.prompt_logprobs is not None
    entries = zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
    return torch.tensor([own[token].logprob for token, own in entries if own is not None])


@pytest.mark.parametrize("name", ["tensor", "blocks"])
def test_models(name: str, tmp_path: Path) -> None:
    """In float32 weights have the file's values, unless the method is named."""
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    config, make = FORMATS[name]
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        if layer == "lm_head":
            return None
        tensors, weight = make(shape, random)
        return {leaf: tensor for leaf, tensor in tensors.items() if not leaf.startswith("input")}, weight

    write_layers(source, tmp_path / "fp8", config, store)
    exact = LLM(str(tmp_path / "fp8"), **SETTINGS)
    assert not any(isinstance(layer.scheme, RepackedScheme) for layer in layers_of(exact).values())
    near = LLM(str(tmp_path / "fp8"), **(SETTINGS | {"quantization": "fp8"}))
    assert isinstance(layers_of(near)["model.layers.0.mlp.gate_up_proj"].scheme, RepackedScheme)
    assert (logprobs_of(near) - logprobs_of(exact)).abs().mean() < 0.15  # of tokens at about -8


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", BlockScheme), ("float32", Float8Scheme)])
def test_weights_rounded_at_load(dtype: str, kind: type[LinearScheme], tmp_path: Path) -> None:
    """Integers in place of float8, unless exact values are asked for; the head is rounded to neither."""
    source = write_model(tmp_path, hidden_size=64, intermediate_size=96)
    layers = layers_of(LLM(str(source), **(SETTINGS | {"quantization": "fp8", "dtype": dtype})))
    assert type(layers.pop("lm_head").scheme) is PlainScheme
    assert {type(layer.scheme) for layer in layers.values()} == {kind}
