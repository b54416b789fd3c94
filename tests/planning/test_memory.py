"""Memory estimates against the parameters of models that were really built."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from cache_groups import cache_groups
from tiny_models import FAMILIES, tiny_config

from octavo.execution.state import BatchState
from octavo.hub.config_file import parse_config
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.models.registry import build_model
from octavo.planning.memory import (
    activation_bytes,
    choice_bytes,
    graph_bytes,
    model_size,
    num_parameters,
    read_parameters,
    state_bytes,
)
from octavo.platforms import ImaginedGpu
from octavo.quantization.config import SchemeOptions
from octavo.quantization.resolve import parsed_quantization, rounded_quantization
from octavo.records import Plan


def make_plan(**values: Any) -> Plan:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "num_blocks": 9,
        "block_bytes": 4,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "scheduling_policy": "fcfs",
        "num_steps_ahead": 0,
    }
    return Plan(**defaults, **values)


def built_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        model = build_model(config, Build(), 16)
    return sum(parameter.numel() for parameter in model.parameters())


def test_deepseek_v32_keeps_latent_vectors_and_keys_of_its_indexer() -> None:
    size = model_size(parse_config({"architectures": ["DeepseekV32ForCausalLM"]}), torch.bfloat16)
    token_bytes = sum(spec.block_bytes(1, 1) for spec in size.cache_specs.values())
    assert token_bytes == 61 * (512 + 64 + 128) * 2
    assert size.num_chosen == 2048
    # 100 tokens: scores of all positions, and two layers' choices.
    assert choice_bytes(2048, 100, 8192) == 100 * (8192 + 2 * 2048) * 4
    assert choice_bytes(2048, 8192, 163840) == (1 << 28) + 2 * 8192 * 2048 * 4


@pytest.mark.parametrize("tie_word_embeddings", [True, False])
@pytest.mark.parametrize("architecture", list(FAMILIES))
def test_parameters_are_those_of_the_built_model(architecture: str, tie_word_embeddings: bool) -> None:
    config = tiny_config(
        architecture,
        num_layers=4,
        tie_word_embeddings=tie_word_embeddings,
        attention_bias=architecture == "Qwen2ForCausalLM",
    )
    assert num_parameters(config) == built_parameters(config)


@pytest.mark.parametrize(("attention_bias", "mlp_bias"), [(True, False), (False, True), (True, True)])
def test_biases_are_counted(attention_bias: bool, mlp_bias: bool) -> None:
    config = tiny_config(attention_bias=attention_bias, mlp_bias=mlp_bias)
    assert num_parameters(config) == built_parameters(config)


def test_a_decode_step_reads_everything_but_an_untied_embedding() -> None:
    tied, untied = tiny_config(), tiny_config(tie_word_embeddings=False)
    assert read_parameters(tied) == (num_parameters(tied), None)
    assert read_parameters(untied) == read_parameters(tied)
    assert num_parameters(tied) < num_parameters(untied)


@pytest.mark.parametrize("method", ["int4", "fp8"])
@pytest.mark.parametrize("tie_word_embeddings", [True, False])
def test_parameters_are_counted_however_they_are_stored(method: str, tie_word_embeddings: bool) -> None:
    config = replace(tiny_config(tie_word_embeddings=tie_word_embeddings), hidden_size=256, intermediate_size=512)
    stored = rounded_quantization(method, SchemeOptions(has_float8=True))
    size = model_size(config, torch.bfloat16, stored)
    assert size.num_parameters == num_parameters(config)
    assert size.weight_bytes < 2 * size.num_parameters


@pytest.mark.parametrize("tie_word_embeddings", [True, False])
def test_weights_are_grouped_by_purpose_and_format(tie_word_embeddings: bool) -> None:
    """Of experts, a token reads those that it chooses; of an embedding nothing, unless it is the head as well."""
    raw = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 100,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "tie_word_embeddings": tie_word_embeddings,
    }
    size = model_size(parse_config(raw), torch.bfloat16, rounded_quantization("int4", SchemeOptions()))
    groups = {(group.purpose, group.format): (group.num_bytes, group.num_read) for group in size.weights}
    experts, embedding = 2 * 8 * 3 * 128 * 64, 2 * 100 * 128
    num_groups = 2 * 8 * (2 * 64 + 128)  # of 128 and 64 inputs
    packed = experts // 2 + num_groups * 5
    assert groups["experts", "int4"] == (packed, packed // 4)
    assert groups["embeddings", "bfloat16"] == (embedding, embedding * tie_word_embeddings)
    attention = 2 * (128 * (128 + 2 * 64) + 128 * 128)  # 4 bits, a scale and a zero per 128 inputs
    assert groups["attention", "int4"] == (attention // 2 + attention // 128 * 5,) * 2
    assert (("head", "int8") in groups) != tie_word_embeddings
    assert sum(num_bytes for num_bytes, _ in groups.values()) == size.weight_bytes


def test_experts_are_counted_as_they_are_stored_or_named_as_expanded() -> None:
    raw = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
    }
    options, count = SchemeOptions(has_blocks=True), 2 * 8 * 96 * 256
    gpu = SchemeOptions(has_groups=True, packs_gguf=True)
    names = [f"model.layers.{layer}.mlp.experts.*.{name}_proj" for layer in range(2) for name in ("gate", "up", "down")]
    types = {name: "Q5_0" if "down" in name else "Q4_K" for name in names}
    for stored, name, num_bytes in (
        (rounded_quantization("int4", options), "int4", 3 * count * 20 // 32),
        (rounded_quantization("int8", options), "int8", 3 * count * 34 // 32),
        (parsed_quantization("gguf", {"types": types}, options), "Q4_K and Q5_0", count * (2 * 148 + 8 * 22) // 256),
        (parsed_quantization("gguf", {"types": types}, gpu), "int4 and int8", count * (2 * 22 + 36) // 32),
    ):
        size = model_size(parse_config(raw), torch.bfloat16, stored)
        groups = {(group.purpose, group.format): (group.num_bytes, group.num_read) for group in size.weights}
        assert groups["experts", name] == (num_bytes, num_bytes // 4) and not size.has_plain_experts
    gptq = parsed_quantization("gptq", {"bits": 4, "group_size": 32, "sym": False, "desc_act": True}, options)
    assert model_size(parse_config(raw), torch.bfloat16, gptq).has_plain_experts


def test_a_models_bytes_are_those_of_its_tensors() -> None:
    config = tiny_config(num_layers=2)
    size = model_size(config, torch.bfloat16)
    assert size.weight_bytes == 2 * size.num_parameters
    # Cosines and signed sines of 16 dimensions.
    assert size.table_bytes == 2 * 16 * 2
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("num_groups", [1, 3])
def test_the_batchs_state_is_no_larger_than_reckoned(num_groups: int) -> None:
    groups = cache_groups(*[None] * num_groups, block_size=8)
    plan = make_plan(max_num_seqs=7, max_model_len=50, block_size=8, groups=groups)
    arena = BatchState(plan, 64, torch.device("cpu")).arena.nbytes
    reckoned = state_bytes(7, plan.num_recent_tokens, num_tokens=0, num_groups=num_groups, blocks=7)
    assert arena <= reckoned <= arena + 7 * 100 + 64


def test_activations_grow_with_the_step_and_its_widest_layer() -> None:
    config = replace(tiny_config(), vocab_size=8)
    few, many = (activation_bytes(config, tokens, 2, 1 << 19) for tokens in (100_000, 200_000))
    assert many == 2 * few
    assert activation_bytes(replace(config, intermediate_size=4096), 100_000, 2, 1 << 19) >= 100_000 * 3 * 4096 * 2


def test_graphs_are_counted_and_share_the_memory_of_the_largest() -> None:
    config, platform = tiny_config(), ImaginedGpu(8 << 30)
    count, num_bytes = graph_bytes(config, 64, 1024, 2, platform)
    more, more_bytes = graph_bytes(config, 256, 1024, 2, platform)
    assert 0 < count < more < 64
    assert count * platform.graph_bytes < num_bytes < more_bytes < 2 * num_bytes * more / count
