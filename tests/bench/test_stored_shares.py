import pytest

from octavo.bench.limits import StoredShares
from octavo.bench.shapes import model_path
from octavo.bench.stored_shares import find_shares
from octavo.config import EngineConfig
from octavo.hub import find_model

HOPPER = {"has_float8": True, "has_blocks": False, "has_groups": True}


def shares_of(model: str, **settings: object) -> StoredShares:
    with model_path(model) as path:
        config = EngineConfig.from_kwargs(model=path, **settings)
        return find_shares(config, find_model(config)[1], "bfloat16", HOPPER, has_float8_cache=True)


def test_without_quantisation_nothing_changes() -> None:
    assert shares_of("qwen3-0.6b") == StoredShares()


def test_float8_weights_take_a_byte_and_a_scale_per_output() -> None:
    shares = shares_of("qwen3-8b", quantization="fp8")
    assert shares.layers == pytest.approx(0.5, rel=2e-3)
    assert (shares.head, shares.keys, shares.is_float8) == (1, 1, True)


def test_experts_have_a_share_of_their_own() -> None:
    shares = shares_of("qwen3-30b-a3b", quantization="fp8")
    assert shares.experts == pytest.approx(0.5, rel=5e-3)
    assert 0.5 < shares.layers < 0.52  # the router keeps its type


def test_int4_weights_have_scales_and_zeros_and_the_head_eight_bits() -> None:
    shares = shares_of("qwen3-8b", quantization="int4")
    # 4 bits, and per 128 of them a float32 scale and a zero of a byte; the head's 8 bits have scales alone.
    assert shares.layers == pytest.approx((4 + 40 / 128) / 16, rel=1e-3)
    assert shares.head == pytest.approx((8 + 32 / 128) / 16, rel=1e-3)
    assert not shares.is_float8


def test_a_quantised_cache_has_scales() -> None:
    shares = shares_of("qwen3-8b", kv_cache_dtype="fp8")
    assert shares.keys == (128 + 4) / 256


def test_deterministic_engines_multiply_in_the_compute_type() -> None:
    assert not shares_of("qwen3-8b", quantization="fp8", deterministic=True).is_float8
