"""Weights rounded to packed integers while they are loaded."""

import pytest
import torch

from octavo.config import EngineConfig
from octavo.hub.config_file import parse_config
from octavo.kernels import block_kernels
from octavo.kernels.grouped import dequantize, round_weight
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.platforms.native import native_kernels
from octavo.quantization.block_config import round_to_integers
from octavo.quantization.config import SchemeOptions
from octavo.quantization.resolve import resolve_quantization
from octavo.quantization.rounded import GROUP, RoundedScheme
from octavo.quantization.scheme import PlainScheme


@pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")
@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4)])
def test_values_are_those_of_a_cpus_blocks(name: str, bits: int) -> None:
    """With the same groups; one value in a thousand may differ, where two ranges are equally good or sums round."""
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(0))
    weight[3], weight[4, :32], weight[5, :32] = 0, 0.25, weight[5, :32].abs() + 4
    kernels = block_kernels(torch.device("cpu"))
    assert kernels is not None
    native = kernels.linear(kernels.quantize(weight, name), name, (48, 128), None, torch.float32)
    found, expected = dequantize(round_weight(weight, bits, 32), torch.float32), native.rows(torch.arange(48))
    assert (found - expected).abs().gt(1e-6).sum() <= 6
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_layers_are_rounded_as_they_are_loaded(bits: int, is_transposed: bool) -> None:
    build = Build(round_to_integers(f"int{bits}", SchemeOptions()), is_transposed=is_transposed)
    layer = build.linear("qkv", 2 * GROUP, {"q": 40, "k": 24})
    assert isinstance(layer, Linear) and layer.scheme == RoundedScheme(bits)
    weight = torch.randn(64, 2 * GROUP, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 2 * GROUP, generator=torch.Generator().manual_seed(1))
    for factor in (1, -2):
        for name, slot in layer.weight_slots("qkv"):
            part = factor * (weight[:40] if name == "q.weight" else weight[40:])
            slot.fill(part.T if is_transposed else part)
        layer.finish_weights()
        rounded = dequantize(round_weight(factor * weight, bits, GROUP), torch.float32)
        torch.testing.assert_close(layer(x), x @ rounded.T)
        assert (rounded / factor - weight).square().mean() < (1e-4 if bits == 8 else 0.02), "values are normal"


def test_layers_that_do_not_fit_and_heads() -> None:
    build = Build(round_to_integers("int4", SchemeOptions()))
    layer = build.linear("proj", GROUP + 32, 16)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, PlainScheme)
    assert build.quantization.head_scheme("lm_head") == RoundedScheme(8)


def test_devices_that_unpack_integers() -> None:
    config = EngineConfig.from_kwargs(model="m", quantization="int4", deterministic=True)
    model = parse_config(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 100,
        }
    )
    found = resolve_quantization(config, model, has_float8=False, has_groups=True)
    assert found.scheme("model.layers.0.mlp.up_proj") == RoundedScheme(4, deterministic=True)
    assert found.description == "int4, a scale per output and 128 inputs"
