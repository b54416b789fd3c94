"""Configurations of models with experts: what is read, and which switches are errors that name them."""

from typing import Any

import pytest
import torch

from octavo.errors import UnsupportedModelError
from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.hub.families.deepseek import DeepseekFields
from octavo.hub.families.gpt_oss import GptOssFields
from octavo.hub.families.hunyuan4 import Hunyuan4Fields
from octavo.hub.families.llama4 import Llama4Fields
from octavo.hub.families.mimo2 import Mimo2Fields
from octavo.hub.families.sparse import SparseFields
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots
from octavo.models.registry import build_model
from octavo.planning.memory import model_size
from octavo.records import ChunkedLocal, Full, Latent
from octavo.records.experts import Routing, StackedExperts


def parse(architecture: str, **raw: Any) -> ModelConfig:
    return parse_config({"architectures": [architecture], **raw})


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv"),
        ("Ernie4_5_MoeForCausalLM", {"use_bias": True}, "use_bias"),
        ("Qwen2MoeForCausalLM", {"use_sliding_window": True}, "use_sliding_window"),
        ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, "topk_method"),
        ("DeepseekV3ForCausalLM", {"topk_method": "greedy"}, "topk_method"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func"),
        ("DeepseekV3ForCausalLM", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("DeepseekV3ForCausalLM", {"n_group": 7}, "n_group"),
        ("DeepseekV3ForCausalLM", {"n_group": 256}, "n_group"),
        ("Glm4MoeLiteForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("Glm4MoeLiteForCausalLM", {"num_hidden_layers": 1, "mlp_layer_types": ["wide"]}, "mlp_layer_types"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": [4, 8], "num_hidden_layers": 2}, "num_experts"),
        ("Cohere2MoeForCausalLM", {"expert_selection_fn": "max"}, "expert_selection_fn"),
        ("Cohere2MoeForCausalLM", {"shared_expert_combination_strategy": "max"}, "combination_strategy"),
        ("Llama4ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("Llama4ForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ("DbrxForCausalLM", {"ffn_config": {"moe_normalize_expert_weights": 2}}, "moe_normalize_expert_weights"),
        ("LongcatFlashForCausalLM", {"router_bias": True}, "router_bias"),
        ("LongcatFlashForCausalLM", {"zero_expert_type": "drop"}, "zero_expert_type"),
        ("LongcatFlashForCausalLM", {"mla_scale_kv_lora": False}, "mla_scale_kv_lora"),
        ("HYV4ForCausalLM", {"learnable_sink": False}, "learnable_sink"),
        ("AfmoeForCausalLM", {"route_norm": False}, "route_norm"),
        ("LagunaForCausalLM", {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
        ("LagunaForCausalLM", {"gating": "per-layer"}, "gating"),
        ("LagunaForCausalLM", {"num_hidden_layers": 2, "num_attention_heads_per_layer": [48, 50]}, "per_layer"),
        ("Step3p5ForCausalLM", {"zero_centered": False}, "zero_centered"),
        ("Step3p5ForCausalLM", {"moe_router_activation": "softmax"}, "moe_router_activation"),
        ("Step3p5ForCausalLM", {"sink": True}, "sink"),
        ("Step3p5ForCausalLM", {"moe_layers_enum": "3,x"}, "moe_layers_enum"),
        ("Step3p5ForCausalLM", {"swiglu_limits": [7.0]}, "swiglu_limits"),
        ("Step3p5ForCausalLM", {"rope_theta": [1e4, *[2e4] * 44]}, "rope_theta"),
        ("Step3p5ForCausalLM", {"yarn_only_types": ["sliding_attention"]}, "yarn_only_types"),
        ("Step3p5ForCausalLM", {"attention_other_setting": {"num_attention_groups": 3}}, "num_attention_groups"),
        ("Step3p5ForCausalLM", {"attention_other_setting": {"num_attention_heads": 9}}, "num_sliding_attention_heads"),
        ("MiMoV2FlashForCausalLM", {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads"),
        ("MiMoV2FlashForCausalLM", {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ("GraniteMoeSWAForCausalLM", {"layer_rope_theta": [1e4]}, "layer_rope_theta"),
    ],
)
def test_what_is_not_supported_is_named(architecture: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse(architecture, **changes)


def test_deepseek_v3() -> None:
    own = parse("DeepseekV3ForCausalLM", moe_layer_freq=1, topk_method="noaux_tc").own_as(DeepseekFields)
    assert own.experts.routing == Routing(256, 8, "sigmoid", True, 2.5, True, 8, 4, 2)
    assert own.experts.is_sparse == (False,) * 3 + (True,) * 58
    assert (own.experts.size, own.experts.shared_size, own.rope_interleave) == (2048, 2048, True)


def test_layers_without_experts() -> None:
    config = parse("Qwen3MoeForCausalLM", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    assert config.own_as(SparseFields).experts.is_sparse == (False, True, False, False, False, True)
    config = parse("Ernie4_5_MoeForCausalLM", num_hidden_layers=4, moe_layer_start_index=1, moe_layer_end_index=2)
    assert config.own_as(SparseFields).experts.is_sparse == (False, True, True, False)
    config = parse("Llama4ForCausalLM", num_hidden_layers=4, interleave_moe_layer_step=2)
    assert config.own_as(Llama4Fields).experts.is_sparse == (False, True, False, True)


def test_counts_for_each_layer() -> None:
    config = parse("HunYuanMoEV1ForCausalLM", num_experts=64, moe_topk=[8] * 32, num_hidden_layers=32)
    routing = config.own_as(SparseFields).experts.routing
    assert (routing.num_experts, routing.num_chosen) == (64, 8)


def test_minimax_says_how_many_values_rotate() -> None:
    assert parse("MiniMaxM2ForCausalLM", rotary_dim=64).rope.partial_rotary_factor == 0.5


def test_gpt_oss() -> None:
    config = parse("GptOssForCausalLM", num_hidden_layers=3)
    assert config.layer_types == ("sliding_attention", "full_attention", "sliding_attention")
    assert (config.rope.kind, config.rope.params["truncate"], config.rope.theta) == ("yarn", False, 150_000.0)
    assert config.own_as(GptOssFields).experts.storage == StackedExperts(is_transposed=True, is_interleaved=True)
    packed = parse("GptOssForCausalLM", quantization_config={"quant_method": "mxfp4"})
    assert packed.own_as(GptOssFields).experts.storage == StackedExperts(is_interleaved=True, is_mxfp4=True)


def test_layers_of_llama4_with_rotary_embedding_attend_within_chunks() -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64}
    config = parse("Llama4ForCausalLM", **sizes, num_hidden_layers=4, intermediate_size=16, intermediate_size_mlp=16)
    assert config.max_position_embeddings == 131072
    specs = list(model_size(config, torch.float32).cache_specs.values())
    assert specs == [ChunkedLocal(1, 16, "float32", 8192)] * 3 + [Full(1, 16, "float32")]


_TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


_INDEXED = ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "HYV4ForCausalLM"]


@pytest.mark.parametrize("architecture", _INDEXED)
def test_layers_with_an_indexer_have_a_second_cache(architecture: str) -> None:
    config = parse(architecture, **_TINY, index_head_dim=6, indexer_types=["full", "shared"])
    specs = model_size(config, torch.float32).cache_specs
    assert specs == {
        "model.layers.0.self_attn": Latent(12, "float32"),
        "model.layers.0.self_attn.indexer": Latent(6, "float32"),
        "model.layers.1.self_attn": Latent(12, "float32"),
    }
    names = {name.split(".")[2] for name in collect_slots(build_model(config, Build(), 64)) if ".indexer." in name}
    assert names == {"0"}


@pytest.mark.parametrize(
    ("architecture", "given", "expected"),
    [
        ("DeepseekV32ForCausalLM", {}, "FFFFFFF"),
        ("HYV4ForCausalLM", {}, "FFSSSFS"),
        ("GlmMoeDsaForCausalLM", {}, "FFFFFFF"),
        ("GlmMoeDsaForCausalLM", {"index_topk_freq": 2, "index_skip_topk_offset": 3}, "FFFSFSF"),
        ("GlmMoeDsaForCausalLM", {"index_topk_pattern": "FSSFSFS"}, "FSSFSFS"),
        ("GlmMoeDsaForCausalLM", {"index_topk_pattern": "FSSFSFSS"}, "FSSFSFS"),  # with one for a draft layer
    ],
)
def test_layers_share_an_indexer(architecture: str, given: dict[str, Any], expected: str) -> None:
    config = parse(architecture, **_TINY | {"num_hidden_layers": 7}, **given)
    fields = config.own.latent if isinstance(config.own, Hunyuan4Fields) else config.own_as(DeepseekFields)
    assert fields.indexer is not None
    assert "".join("F" if is_own else "S" for is_own in fields.indexer.is_own) == expected


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"indexer_types": ["full", "half"]}, "indexer_types"),
        ({"index_topk_pattern": "SF"}, "index_topk_pattern"),
        ({"index_head_dim": 2}, "index_head_dim"),
        ({"index_topk": 0}, "index_topk"),
        ({"q_lora_rank": None}, "q_lora_rank"),
    ],
)
@pytest.mark.parametrize("architecture", _INDEXED)
def test_wrong_indexers_are_rejected(architecture: str, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse(architecture, **_TINY | wrong)


def test_hunyuan4_has_the_names_of_published_files() -> None:
    slots = collect_slots(build_model(parse("HYV4ForCausalLM", **_TINY), Build(), 64))
    layer = {name.removeprefix("model.layers.1.") for name in slots if name.startswith("model.layers.1.")}
    assert {
        "hc_attn_layer.hc_pre.hc_fn",
        "hc_mlp_layer.hc_pre.hc_scale",
        "mlp.shared_experts.gate_proj.weight",
    } <= layer
    assert {"self_attn.linear_gate.weight", "self_attn.learnable_sink_param"} <= layer
    assert {"model.hc_head.hc_head_fn", "model.hc_head.hc_head_base", "model.hc_head.hc_head_scale"} <= slots.keys()


def test_dbrx_has_its_rotary_base_inside_another_object() -> None:
    published = {"attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500_000}, "n_heads": 48, "d_model": 6144}
    config = parse("DbrxForCausalLM", **published)
    assert (config.rope.theta, config.num_kv_heads, config.own_as(SparseFields).clip_qkv) == (500_000.0, 8, 8.0)
    # Transformers 5 adds its default where it writes the same configuration.
    rewritten = parse("DbrxForCausalLM", **published, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    assert rewritten.rope.theta == 500_000.0


def test_mimo_has_forms_of_its_own() -> None:
    config = parse(
        "MiMoV2FlashForCausalLM",
        num_hidden_layers=4,
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 0, 1],
        layernorm_epsilon=1e-6,
        sliding_window_size=128,
        rope_theta=10_000_000,
        swa_rope_theta=20_000,
        partial_rotary_factor=0.5,
        routed_scaling_factor=None,
    )
    own = config.own_as(Mimo2Fields)
    assert [kind == "sliding_attention" for kind in config.layer_types] == [False, True, True, False]
    assert (own.experts.is_sparse, own.experts.routing.scale) == ((False, True, False, True), 1.0)
    assert (config.sliding_window, config.rms_norm_eps) == (129, 1e-6)
    assert (config.rope.theta, own.local_rope.theta, own.local_rope.partial_rotary_factor) == (1e7, 2e4, 0.5)
