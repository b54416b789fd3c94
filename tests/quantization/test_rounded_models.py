"""Weights rounded to packed integers while they are loaded."""

import pytest
import torch

from octavo.config import EngineConfig
from octavo.hub.config_file import parse_config
from octavo.kernels import block_kernels
from octavo.kernels.float4 import FLOAT4_VALUES, float4_codes, float4_values, powers_of_two, round_to_float4
from octavo.kernels.grouped import ZERO_STEP, Rounding, dequantize, round_weight
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.platforms.native import native_kernels
from octavo.quantization.block_config import round_to_int4
from octavo.quantization.config import SchemeOptions
from octavo.quantization.resolve import resolve_quantization, rounded_quantization
from octavo.quantization.rounded import GROUPS, RoundedScheme
from octavo.quantization.scheme import PlainScheme


@pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_values_are_as_good_as_a_cpus_blocks(name: Rounding) -> None:
    """With the same groups; INT4 has coarser zeros than blocks have minimums, which costs a few percent."""
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(0))
    weight[3], weight[4, :32] = 0, 0.25
    kernels = block_kernels(torch.device("cpu"))
    assert kernels is not None
    native = kernels.linear(kernels.quantize(weight, name), name, (48, 128), None, torch.float32)
    found, expected = dequantize(round_weight(weight, name, 32), torch.float32), native.rows(torch.arange(48))
    if name == "int8":
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (found - weight).square().mean() < 1.05 * (expected - weight).square().mean()
    assert not found[3].any()
    torch.testing.assert_close(found[4, :32], weight[4, :32], rtol=4e-3, atol=0)


def gaussian_with_outliers() -> torch.Tensor:
    """One value in a thousand is ten times as large."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 1024, generator=generator)
    weight[torch.rand(weight.shape, generator=generator) < 1e-3] *= 10
    return weight


@pytest.mark.parametrize(
    ("name", "group", "largest"),
    [("int8", 128, 0.0096), ("int8", 32, 0.0064), ("int4", 128, 0.1094), ("int4", 32, 0.0750), ("mxfp4", 32, 0.1208)],
)
def test_errors_of_gaussian_weights_with_outliers(name: Rounding, group: int, largest: float) -> None:
    """Relative; scales from the largest magnitudes alone would give 0.119 and 0.083 with INT4."""
    weight = gaussian_with_outliers()
    found = dequantize(round_weight(weight, name, group), torch.float32)
    assert 0.98 * largest < (found - weight).norm() / weight.norm() < largest


def test_sixteen_steps_stay_as_they_are() -> None:
    """A file's weights of 4 bits, whose groups have all codes."""
    codes = torch.arange(16.0).repeat(8, 8)
    for zero in (0, 3, 7.5, 15):
        weight = (codes - zero) * 2.0 ** torch.arange(-4, 4)[:, None]
        assert torch.equal(dequantize(round_weight(weight, "int4", 128), torch.float32), weight)


@pytest.mark.parametrize("sign", [1, -1])
def test_groups_of_one_sign(sign: int) -> None:
    """Their range has zero all the same, since zeros are codes."""
    weight = sign * (1 + torch.rand(4, 256, generator=torch.Generator().manual_seed(0)))
    rounded = round_weight(weight, "int4", 128)
    assert rounded.zeros is not None and rounded.zeros.max() <= 15 / ZERO_STEP
    torch.testing.assert_close(dequantize(rounded, torch.float32), weight, rtol=0, atol=2 / 15 / 2 + 0.01)


@pytest.mark.parametrize("name", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_layers_are_rounded_as_they_are_loaded(name: Rounding, is_transposed: bool) -> None:
    build = Build(rounded_quantization(name, SchemeOptions(has_groups=True)), is_transposed=is_transposed)
    layer = build.linear("qkv", 256, {"q": 40, "k": 24})
    assert isinstance(layer, Linear) and layer.scheme == RoundedScheme(name)
    check_rounding(layer, name, is_transposed=is_transposed)


def check_rounding(layer: Linear, name: Rounding, *, is_transposed: bool) -> None:
    """Fill a layer twice, and hold it against the rounded weight."""
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    for factor in (1, -2):
        for path, slot in layer.weight_slots("qkv"):
            part = factor * (weight[:40] if path == "q.weight" else weight[40:])
            slot.fill(part.T if is_transposed else part)
        layer.finish_weights()
        rounded = dequantize(round_weight(factor * weight, name, GROUPS[name]), torch.float32)
        torch.testing.assert_close(layer(x), x @ rounded.T, rtol=1e-5, atol=1e-4)
        assert (rounded / factor - weight).square().mean() < (1e-4 if name == "int8" else 0.02), "values are normal"


def test_layers_that_do_not_fit_and_heads() -> None:
    build = Build(round_to_int4(SchemeOptions()))
    layer = build.linear("proj", 128 + 32, 16)
    assert isinstance(layer, Linear) and isinstance(layer.scheme, PlainScheme)
    assert build.quantization.head_scheme("lm_head") == RoundedScheme("int8")


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
    assert found.scheme("model.layers.0.mlp.up_proj") == RoundedScheme("int4", deterministic=True)
    assert found.description == "int4, a scale per output and 128 inputs"


def test_4_bit_floats() -> None:
    """Nearest values, ties to even codes, the largest at the end; every code stands for a value of its own."""
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(float4_codes(float4_values(codes)), codes)
    halfway = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 9.0, -0.25, -2.5])
    assert float4_codes(halfway).tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 12]


def test_scales_of_mxfp4() -> None:
    """Of the largest magnitudes: up to 7 scales, of which 6 are kept."""
    largest = torch.tensor([0.0, 3.5, 4.0, 6.0, 6.99, 7.0, -7.5, 13.9, 2.0**-120, 2.0**120])
    groups = torch.linspace(0, 1, 32) * largest[:, None]
    codes, exponents = round_to_float4(groups)
    scales = powers_of_two(exponents)
    assert scales.tolist() == [0.125, 1, 1, 1, 1, 2, 2, 2, 2.0**-122, 2.0**118]
    found = float4_values(codes) * scales[:, None]
    assert found[:, -1].tolist() == [0, 4, 4, 6, 6, 8, -8, 12, 2.0**-120, 2.0**120]
    table = torch.tensor(FLOAT4_VALUES) * scales[:, None, None]
    torch.testing.assert_close((found - groups).abs(), (groups[..., None] - table).abs().amin(-1), rtol=1e-5, atol=0)
