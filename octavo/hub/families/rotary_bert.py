"""NomicBERT, GTE and Jina Embeddings v3 (BERT with rotary embedding): configuration parsing."""

from dataclasses import dataclass, field, replace
from typing import Any

from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import ConfigValues, invalid, require_values
from octavo.hub.encoder_config import HEADS, MAX_POSITIONS, EncoderFields, encoder_config, tanh_head
from octavo.hub.model_config import ModelConfig, RopeConfig

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
}


@dataclass(frozen=True, slots=True)
class RotaryBertFamily:
    """Reading rules of one kind of encoder; see :class:`octavo.hub.families.registry.Family`.

    Attributes:
        model: the model's class, as ``module:class``.
        model_type: as config.json names it.
        prefix: see :class:`EncoderFields`.
        defaults: values of absent keys.
        names: keys that the family calls otherwise: the usual name → its own.
        wanted: switches of the authors' own code of which one value is implemented.
        head: name of the layer before the classifier; empty for the pooler's.
        classifier: see :class:`EncoderFields`.
        has_biases, has_up_bias: whether linear layers have biases, and whether the feed-forward part's first one has.
    """

    model: str
    model_type: str
    prefix: str
    defaults: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    wanted: dict[str, Any] = field(default_factory=dict)
    head: str = ""
    classifier: str = "classifier"
    has_biases: bool = True
    has_up_bias: bool = True

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """See :meth:`octavo.hub.families.registry.Family.parse`."""
        raw = raw | {name: raw[own] for name, own in self.names.items() if raw.get(own) is not None}
        values = ConfigValues(raw, {**_DEFAULTS, **self.defaults}, {})
        require_values(values, self.wanted)
        own = EncoderFields(
            self.prefix,
            head=tanh_head(self.head or f"{self.prefix}pooler.dense", values),
            classifier=self.classifier,
            type_vocab_size=values.optional_count("type_vocab_size", least=0) or 0,
            attention_bias=self.has_biases,
            up_bias=self.has_up_bias,
            down_bias=self.has_biases,
        )
        max_positions = values.count("max_position_embeddings", MAX_POSITIONS)
        rope = parse_ropes(values)[0]
        config = encoder_config(architecture, self.model_type, values, own, max_positions=max_positions, rope=rope)
        return replace(config, rope=_plain_ntk(config.rope, config.head_dim))


def _plain_ntk(rope: RopeConfig, head_dim: int) -> RopeConfig:
    """GTE's scaling: a larger base, chosen so that the slowest dimension is stretched by the factor, as in NTK-aware
    scaling, and all are stretched a little more."""
    if rope.kind != "ntk":
        return rope
    factor = rope.params.get("factor")
    if not isinstance(factor, (int, float)) or rope.params.get("mixed_b") is not None:
        raise invalid("rope_scaling", rope.params, "a factor alone")
    return RopeConfig(rope.theta * factor, "linear", {"factor": factor ** (2 / head_dim)})


_NOMIC = RotaryBertFamily(
    "octavo.models.rotary_bert:NomicBertBackbone",
    "nomic_bert",
    "nomic_bert.",
    {
        "vocab_size": 30528,
        "hidden_act": "silu",
        "type_vocab_size": 2,
        "max_position_embeddings": 2048,
        "rope_theta": 1000.0,
    },
    names={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "max_trained_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "rope_theta": "rotary_emb_base",
    },
    wanted={
        "activation_function": "swiglu",
        "prenorm": False,
        "use_rms_norm": False,
        "causal": False,
        "parallel_block": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "num_experts": 0,
    },
    has_biases=False,
    has_up_bias=False,
)
_GTE = RotaryBertFamily(
    "octavo.models.rotary_bert:GteBackbone",
    "gte",
    "gte.",
    {
        "vocab_size": 250048,
        "hidden_act": "gelu",
        "type_vocab_size": 1,
        "max_position_embeddings": 8192,
        "rope_theta": 160000.0,
    },
    wanted={
        "layer_norm_type": "layer_norm",
        "position_embedding_type": "rope",
        "pack_qkv": True,
        "logn_attention_scale": False,
        "logn_attention_clip1": False,
    },
    has_up_bias=False,
)
_NEW = replace(
    _GTE,
    model_type="new",
    prefix="new.",
    defaults=_GTE.defaults | {"vocab_size": 30528, "max_position_embeddings": 2048, "rope_theta": 10000.0},
)
_JINA = RotaryBertFamily(
    "octavo.models.rotary_bert:JinaBackbone",
    "jina_embeddings_v3",
    "roberta.",
    {
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_act": "gelu",
        "type_vocab_size": 1,
        "max_position_embeddings": 8194,
        "layer_norm_eps": 1e-5,
        "rope_theta": 20000.0,
    },
    names={"rope_theta": "rotary_emb_base"},
    wanted={"position_embedding_type": "rotary", "lora_adaptations": []},
    head="classifier.dense",
    classifier="classifier.out_proj",
)

FAMILIES = {
    **{f"NomicBert{head}": _NOMIC for head in HEADS},
    **{f"Gte{head}": _GTE for head in HEADS},
    **{f"{name}{head}": _NEW for head in HEADS for name in ("New", "GteNew")},
    **{f"JinaEmbeddingsV3{head}": _JINA for head in HEADS},
    "ColBERTJinaRobertaModel": _JINA,
}
