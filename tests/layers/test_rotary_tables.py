"""Rotary tables against transformers' own functions."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import RopeConfig
from octavo.kernels import apply_rope
from octavo.layers.rotary import RotaryEmbedding

POSITIONS = 200
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.3 * i for i in range(8)]}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: list[tuple[str, float, dict[str, Any]]] = [
    ("default", 10_000.0, {}),
    ("default", 500_000.0, {}),
    ("linear", 10_000.0, {"factor": 8.0}),
    ("llama3", 500_000.0, LLAMA3),
    ("llama3", 500_000.0, {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}),
    ("yarn", 10_000.0, YARN),
    ("yarn", 1_000_000.0, {**YARN, "attention_factor": 1.5}),
    ("yarn", 1_000_000.0, {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}),
    ("yarn", 10_000.0, {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5}),
    ("yarn", 150_000.0, {**YARN, "factor": 32.0, "truncate": False}),
]


def reference(kind: str, theta: float, params: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[positions, head_dim]`` by transformers."""
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **params},
    )
    if kind == "default":
        inverse, factor = LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    angles = torch.arange(POSITIONS).double()[:, None] * inverse.double()
    return torch.cat((angles, angles), -1).cos() * factor, torch.cat((angles, angles), -1).sin() * factor


@pytest.mark.parametrize(("kind", "theta", "params"), SCALINGS)
@pytest.mark.parametrize("head_dim", [16, 64])
def test_tables_equal_those_of_transformers(kind: str, theta: float, params: dict[str, Any], head_dim: int) -> None:
    rotary = RotaryEmbedding(head_dim, RopeConfig(theta, kind, params), POSITIONS)
    positions = torch.arange(POSITIONS)
    cos, sin = rotary(positions)
    expected_cos, expected_sin = reference(kind, theta, params, head_dim)
    assert cos.shape == sin.shape == (POSITIONS, 1, head_dim)
    # Angles of up to 200 in float32 carry an error of about 1e-5.
    torch.testing.assert_close(cos[:, 0].double(), expected_cos, rtol=0, atol=5e-5)
    half = head_dim // 2
    signed = torch.cat((-expected_sin[:, :half], expected_sin[:, half:]), -1)
    torch.testing.assert_close(sin[:, 0].double(), signed, rtol=0, atol=5e-5)


@pytest.mark.parametrize(("original", "name"), [(64, "long_factor"), (POSITIONS, "short_factor")])
def test_longrope_divides_by_the_factors_of_the_longest_text(original: int, name: str) -> None:
    params = {**LONGROPE, "factor": 8.0, "original_max_position_embeddings": original}
    cos, _ = RotaryEmbedding(16, RopeConfig(10_000.0, "longrope", params), POSITIONS)(torch.tensor([1]))
    # Transformers takes the short factors until a text is longer.
    expected, _ = reference("longrope", 10_000.0, {**params, "short_factor": params[name]}, 16)
    torch.testing.assert_close(cos[0, 0].double(), expected[1], rtol=0, atol=5e-5)


@pytest.mark.parametrize("factors", [None, [1.0] * 7, [0.0] * 8, 2.0])
def test_longrope_without_a_factor_per_pair_is_rejected(factors: object) -> None:
    params = {"factor": 8.0, "original_max_position_embeddings": 64, "long_factor": factors}
    with pytest.raises(UnsupportedModelError, match="needs 8 positive numbers in 'long_factor'"):
        RotaryEmbedding(16, RopeConfig(10_000.0, "longrope", params), POSITIONS)


@pytest.mark.parametrize("original", [POSITIONS // 2, POSITIONS])
def test_dynamic_scaling_begins_beyond_the_models_own_length(original: int) -> None:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=original,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 3.0},
    )
    inverse, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=POSITIONS)
    params = {"factor": 3.0, "original_max_position_embeddings": original}
    cos, _ = RotaryEmbedding(16, RopeConfig(10_000.0, "dynamic", params), POSITIONS)(torch.tensor([1]))
    torch.testing.assert_close(cos[0, 0, :8], inverse.cos(), rtol=0, atol=5e-5)


def test_a_table_without_rotation_leaves_heads_as_they_are() -> None:
    x = torch.randn(3, 2, 16)
    assert torch.equal(apply_rope(x, *RotaryEmbedding(16, None, 10)(torch.tensor([0, 4, 9]))), x)


def test_only_part_of_a_head_rotates_with_a_partial_factor() -> None:
    whole = RotaryEmbedding(8, RopeConfig(10_000.0), 10)
    part = RotaryEmbedding(16, RopeConfig(10_000.0, partial_rotary_factor=0.5), 10)
    assert torch.equal(part.cos, whole.cos)
    assert torch.equal(part.sin, whole.sin)


def test_tables_are_looked_up_by_position() -> None:
    rotary = RotaryEmbedding(4, RopeConfig(10_000.0), 10)
    cos, _ = rotary(torch.tensor([3, 0, 3]))
    assert cos[0, 0, 0].item() == pytest.approx(math.cos(3.0), abs=1e-6)
    assert torch.equal(cos[0], cos[2])
    assert torch.equal(cos[1], torch.ones(1, 4))


def test_an_unknown_scaling_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match="'spiral' is not supported; supported are default, dynamic"):
        RotaryEmbedding(8, RopeConfig(10_000.0, "spiral"), 10)


@pytest.mark.parametrize("factor", [None, 0, -2.0, "8", True])
def test_a_scaling_without_a_positive_factor_is_refused(factor: object) -> None:
    with pytest.raises(UnsupportedModelError, match="'linear' needs a positive number 'factor'"):
        RotaryEmbedding(8, RopeConfig(10_000.0, "linear", {"factor": factor}), 10)
