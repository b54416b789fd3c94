import dataclasses

import pytest

from octavo.bench.limits import Ceilings, ModelLimits, StoredShares
from octavo.bench.shapes import SHAPES
from octavo.hub.config_file import parse_config
from octavo.hub.model_config import ModelConfig

H200 = Ceilings(read_bandwidth=4.4e12, matmul_rate=777e12)
SLOW_MEMORY = Ceilings(read_bandwidth=1.0, matmul_rate=1e30)
SLOW_COMPUTE = Ceilings(read_bandwidth=1e30, matmul_rate=1.0)


@pytest.fixture
def config() -> ModelConfig:
    return parse_config(SHAPES["tiny"])


def limits_of(name: str) -> ModelLimits:
    return ModelLimits(parse_config(SHAPES[name]), 2, H200)


def test_a_token_costs_reading_the_weights() -> None:
    # Counted by hand: 36 × 192.9 M parameters of layers and 622 M of the head, 2 bytes each, over 4.4 TB/s.
    assert limits_of("qwen3-8b").decode_step([1]) == pytest.approx(3.44e-3, rel=2e-3)
    assert limits_of("qwen3-0.6b").decode_step([1]) == pytest.approx(0.271e-3, rel=2e-3)


@pytest.mark.parametrize(("batch_size", "rate"), [(1, 725), (8, 1_349), (32, 2_603), (128, 8_738)])
def test_batches_read_the_experts_that_their_tokens_chose(batch_size: int, rate: float) -> None:
    # Counted apart: 6 M parameters an expert, of which 8 tokens draw 51.6 of 128 and 32 tokens 112, in 48 layers.
    limits = limits_of("qwen3-30b-a3b")
    assert batch_size / limits.decode_step([320] * batch_size) == pytest.approx(rate, rel=0.02)


def test_large_batches_are_bound_by_operations_and_keys() -> None:
    limits = limits_of("qwen3-8b")
    assert 256 / limits.decode_step([320] * 256) == pytest.approx(33_100, rel=0.01)
    assert 64 * 4096 / limits.prefill([4096] * 64) == pytest.approx(51_450, rel=0.01)


def test_bytes_of_a_step_are_weights_and_keys(config: ModelConfig) -> None:
    limits = ModelLimits(config, 4, SLOW_MEMORY)
    key_bytes = 2 * 2 * config.num_kv_heads * config.head_dim * 4  # Keys and values of two layers.
    assert limits.decode_step([10, 20]) - limits.decode_step([10]) == pytest.approx(20 * key_bytes)


def test_stored_weights_and_keys_take_fewer_bytes(config: ModelConfig) -> None:
    plain = ModelLimits(config, 4, SLOW_MEMORY)
    halved = ModelLimits(config, 4, SLOW_MEMORY, StoredShares(layers=0.5, head=0.5, keys=0.5))
    assert halved.decode_step([10, 20]) == pytest.approx(plain.decode_step([10, 20]) / 2)
    with_head = ModelLimits(config, 4, SLOW_MEMORY, StoredShares(layers=0.5, keys=0.5))
    head_bytes = config.vocab_size * config.hidden_size * 4
    assert with_head.decode_step([10]) - halved.decode_step([10]) == pytest.approx(head_bytes / 2)


def test_float8_layers_are_bound_by_the_rate_of_float8(config: ModelConfig) -> None:
    ceilings = Ceilings(read_bandwidth=1e30, matmul_rate=1.0, float8_rate=2.0)
    plain, float8 = ModelLimits(config, 2, ceilings), ModelLimits(config, 2, ceilings, StoredShares(is_float8=True))
    rest = 2 * config.vocab_size * config.hidden_size + 2 * 4 * config.num_heads * config.head_dim
    assert float8.decode_step([1]) - rest == pytest.approx((plain.decode_step([1]) - rest) / 2)


def test_windows_bound_what_is_seen(config: ModelConfig) -> None:
    windowed = dataclasses.replace(config, layer_types=("full_attention", "sliding_attention"), sliding_window=4)
    limits = ModelLimits(windowed, 4, SLOW_MEMORY)
    key_bytes = 2 * config.num_kv_heads * config.head_dim * 4
    assert limits.decode_step([10]) - limits.decode_step([1]) == pytest.approx((9 + 3) * key_bytes)


@pytest.mark.parametrize("window", [1, 3, 7, 100])
def test_pairs_of_a_prompt(window: int, config: ModelConfig) -> None:
    kinds = ("sliding_attention",) * 2
    limits = ModelLimits(dataclasses.replace(config, layer_types=kinds, sliding_window=window), 4, SLOW_COMPUTE)
    pairs = sum(min(position + 1, window) for position in range(7))
    products = limits.prefill([1]) - 2 * 4 * config.num_heads * config.head_dim
    head = 2 * config.vocab_size * config.hidden_size
    expected = 7 * (products - head) + head + pairs * 2 * 4 * config.num_heads * config.head_dim
    assert limits.prefill([7]) == pytest.approx(expected)


def test_generating_costs_no_less_than_its_steps(config: ModelConfig) -> None:
    limits = ModelLimits(config, 4, SLOW_MEMORY)
    steps = [limits.decode_step([context]) for context in range(9, 12)]
    assert limits.generate([8], [4]) == pytest.approx(limits.prefill([8]) + sum(steps))
