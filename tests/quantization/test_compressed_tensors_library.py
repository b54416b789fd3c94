"""Checkpoints that the library compressed-tensors writes: what it makes of them, and what Octavo does."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from dequantised_models import assert_computes, layers_of
from integer_checkpoints import write_layers
from safetensors.torch import load_file
from tiny_llama import SETTINGS, write_model

from octavo import LLM

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by their own names

from quality_references import compressed_tensors_rounded, compressed_tensors_scales

pytest.importorskip("compressed_tensors", reason="needs requirements/references.txt; run on an AMD EPYC")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, fake_quantize, preset_name_to_scheme

PRESETS = [
    "W4A16",
    "W4A16_ASYM",
    "W8A16",
    "W4A8",
    "W8A8",
    "FP8_DYNAMIC",
    "FP8_BLOCK",
    "NVFP4A16",
    "MXFP4A16",
    "W4AFP8",
    "MXFP8A16",
    "MXFP8",
    "NVFP4",
    "MXFP4",
    "MXFP4XFP8",
    "W4A4",
]
WIDTHS = ["W2A16", "W3A16", "W3A16_ASYM", "W5A16", "W6A16_ASYM", "W7A16"]
ROUNDS_ACTIVATIONS = {"W8A8": 1e-2, "FP8_DYNAMIC": 1e-3}
"""The presets of which Octavo rounds activations, too, and how far its results may be from the library's.

The library rounds INT8 with the largest magnitude / 127.5, Octavo with that / 127.
"""


def compressed(weight: torch.Tensor, scheme: QuantizationScheme) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the library stores for a layer, and the weight that it means by that, in float32."""
    scales, zeros, factor = compressed_tensors_scales(weight, scheme.weights)
    state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
    if factor is not None:
        state["weight_global_scale"] = factor
    stored = BaseCompressor.get_value_from_registry(scheme.format.value).compress(state, scheme)
    return stored, fake_quantize(weight, scales, zeros, scheme.weights, global_scale=factor)


def scheme_named(preset: str) -> QuantizationScheme:
    """A preset of the library, or of 4 bits with another width as ``W3A16``, symmetric or not."""
    if preset in PRESETS:
        return preset_name_to_scheme(preset, ["Linear"])
    scheme = preset_name_to_scheme(preset.replace(preset[1], "4", 1), ["Linear"])
    scheme.weights.num_bits = int(preset[1])
    return scheme


@pytest.mark.parametrize("preset", PRESETS + WIDTHS)
def test_models(preset: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=128, intermediate_size=256)
    originals = load_file(source / "model.safetensors")
    scheme = scheme_named(preset)
    scheme.format = infer_module_format(torch.nn.Linear, scheme)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format=scheme.format.value)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        return None if layer == "lm_head" else compressed(originals[f"{layer}.weight"].float(), scheme)

    weights = write_layers(source, tmp_path / "own", config.to_dict(), store)
    if preset in ROUNDS_ACTIVATIONS:  # which random layers amplify
        llm = LLM(str(tmp_path / "own"), **SETTINGS)
    else:
        llm = assert_computes(tmp_path / "own", source, weights)
    name = "model.layers.1.mlp.down_proj"
    weight, layer = weights[f"{name}.weight"], layers_of(llm)[name]
    found = layer.multiply(torch.eye(layer.in_features)).T  # rounding keeps ones and zeros
    torch.testing.assert_close(found, weight, rtol=1e-5, atol=1e-5)
    x = torch.randn(7, layer.in_features, generator=torch.Generator().manual_seed(0))
    rounded = compressed_tensors_rounded(x, scheme.input_activations) if preset in ROUNDS_ACTIVATIONS else x
    expected = F.linear(rounded, weight)
    assert (layer.multiply(x) - expected).norm() < ROUNDS_ACTIVATIONS.get(preset, 1e-5) * expected.norm()
