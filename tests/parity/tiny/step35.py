"""Step 3.5, whose layers transformers has as part of Step 3.7, without a causal model of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import GenerationMixin, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel

from tiny.sizes import rope, sizes

_NAMES = {
    "mlp.gate.weight": "moe.gate.weight",
    "mlp.gate.e_score_correction_bias": "moe.router_bias",
    "mlp.experts.down_proj": "moe.down_proj.weight",
    "mlp.shared_experts.": "share_expert.",
}
"""transformers' names → those of published checkpoints."""


class Step3p5ForCausalLM(Step3p7PreTrainedModel, GenerationMixin):
    """The text model with a head."""

    config: Step3p7TextConfig
    config_class = Step3p7TextConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: Step3p7TextConfig) -> None:
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **options: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids, **options).last_hidden_state))

    def save_pretrained(self, folder: Path) -> None:
        """As published checkpoints are: stacked experts, and configurations of transformers 4."""
        weights: dict[str, torch.Tensor] = {}
        for their_name, weight in self.state_dict().items():
            name = their_name
            for old, new in _NAMES.items():
                name = name.replace(old, new)
            if name.endswith("mlp.experts.gate_up_proj"):
                for part, half in zip(("gate_proj", "up_proj"), weight.chunk(2, 1), strict=True):
                    weights[name.replace("mlp.experts.gate_up_proj", f"moe.{part}.weight")] = half
            else:
                weights[name] = weight
        save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(published_config(self.config)))


def published_config(config: Step3p7TextConfig) -> dict[str, Any]:
    """config.json with the keys of published models, whose lists go on with a layer that predicts further tokens."""
    own = config.to_dict()
    for key in ("rope_parameters", "per_layer_config", "mlp_layer_types", "num_sliding_attention_heads"):
        own.pop(key)
    kinds = [*config.layer_types, "full_attention"]
    ropes = {kind: config.rope_parameters.get(kind, {}) for kind in ("full_attention", "sliding_attention")}
    scaling = {
        key: value
        for key, value in ropes["full_attention"].items()
        if key not in ("rope_theta", "partial_rotary_factor")
    }
    sparse = [str(index) for index, kind in enumerate(config.mlp_layer_types) if kind == "sparse"]
    return own | {
        "architectures": ["Step3p5ForCausalLM"],
        "num_attention_groups": own.pop("num_key_value_heads"),
        "moe_num_experts": own.pop("n_routed_experts"),
        "moe_top_k": own.pop("num_experts_per_tok"),
        "num_nextn_predict_layers": 1,
        "layer_types": kinds,
        "rope_theta": [ropes[kind].get("rope_theta", 10_000.0) for kind in kinds],
        "partial_rotary_factors": [ropes[kind].get("partial_rotary_factor", 1.0) for kind in kinds],
        "rope_scaling": None if scaling.get("rope_type") == "default" else scaling,
        "yarn_only_types": ["full_attention"],
        "use_rope_layers": [],
        "moe_layers_enum": ",".join(sparse),
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": config.num_sliding_attention_heads,
            "num_attention_groups": config.num_key_value_heads,
            "head_dim": config.head_dim,
        },
        "swiglu_limits": [*config.swiglu_limits, 0.0] if config.swiglu_limits else None,
        "swiglu_limits_shared": [*config.swiglu_limits_shared, 0.0] if config.swiglu_limits_shared else None,
        "moe_router_activation": "sigmoid",
        "norm_expert_weight": True,
        "use_moe_router_bias": True,
        "use_head_wise_attn_gate": True,
        "use_qk_norm": True,
        "need_fp32_gate": True,
        "zero_centered": True,
        "att_impl_type": "GQA",
        "sink": False,
    }


def tiny_config(**changes: Any) -> Step3p7TextConfig:
    """A configuration with every kind of layer that Step 3.5 has."""
    own = {
        "num_hidden_layers": 5,
        "head_dim": 16,
        "num_experts_per_tok": 3,
        "n_routed_experts": 6,
        "moe_intermediate_size": 24,
        "share_expert_dim": 40,
        "sliding_window": 9,
        "num_sliding_attention_heads": 6,
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "mlp_layer_types": ["dense", *["sparse"] * 4],
        "rope_parameters": {
            "full_attention": rope("default", 50_000.0, partial_rotary_factor=0.5),
            "sliding_attention": rope("default"),
        },
        "moe_router_scaling_factor": 1.7,
    }
    return Step3p7TextConfig(**(sizes(**own) | changes))


_SCALED = rope(
    "llama3",
    50_000.0,
    partial_rotary_factor=0.5,
    factor=2.0,
    low_freq_factor=1.0,
    high_freq_factor=32.0,
    original_max_position_embeddings=64,
)

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    # Gates of random weights are small; these bounds cut every tenth or so.
    "step3.5": lambda: tiny_config(swiglu_limits=[0, 0, 0, 0.3, 0.2], swiglu_limits_shared=[0.5, 0, 0, 0.4, 0]),
    "step3.5-llama3-rope": lambda: tiny_config(
        rope_parameters={"full_attention": _SCALED, "sliding_attention": rope("default")},
        num_sliding_attention_heads=4,
        attention_bias=True,
    ),
}
