"""DeepSeek V3.2 and GLM-5, in which an indexer chooses the tokens that a query attends to: configuration parsing."""

from dataclasses import replace

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.families.deepseek import DEEPSEEK_V3, DeepseekFields, IndexerFields, parse_v3
from octavo.hub.model_config import ModelConfig

_IS_OWN = {"full": True, "F": True, "shared": False, "S": False}


def parse_indexed(values: ConfigValues, config: ModelConfig) -> DeepseekFields:
    """What an indexer adds to DeepSeek V3."""
    values.count("q_lora_rank")  # the indexer reads compressed queries
    head_dim = values.count("index_head_dim")
    if head_dim < config.head_dim:
        raise invalid("index_head_dim", head_dim, f"at least qk_rope_head_dim = {config.head_dim}")
    indexer = IndexerFields(
        num_chosen=values.count("index_topk"),
        num_heads=values.count("index_n_heads"),
        head_dim=head_dim,
        key_eps=1e-6,
        rope_interleave=values.flag("indexer_rope_interleave"),
        rotates_last=False,
        is_own=_own_indexers(values, config.num_layers),
    )
    return replace(parse_v3(values, config), indexer=indexer)


def _own_indexers(values: ConfigValues, num_layers: int) -> tuple[bool, ...]:
    """Which layers have an indexer: by a list of kinds, a string of letters, or one in so many layers from some on."""
    key = "index_topk_pattern" if values.get("indexer_types") is None else "indexer_types"
    given = values.get(key)
    if given is None:
        interval = values.count("index_topk_freq")
        first = values.count("index_skip_topk_offset", least=0) - 1
        return tuple(max(index - first, 0) % interval == 0 for index in range(num_layers))
    if not isinstance(given, (list, str)) or len(given) < num_layers or any(kind not in _IS_OWN for kind in given):
        raise invalid(key, given, f"'full' or 'shared' for each of num_hidden_layers = {num_layers}")
    is_own = tuple(_IS_OWN[kind] for kind in given[:num_layers])
    if not is_own[0]:
        raise UnsupportedModelError(f"The model's configuration has a first layer in {key} that shares an indexer.")
    return is_own


DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v32",
    defaults=DEEPSEEK_V3.defaults
    | {
        "max_position_embeddings": 163840,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk_freq": 1,
        "index_skip_topk_offset": 2,
    },
    fixed=DEEPSEEK_V3.fixed | {"rope_interleave": True},
    parse_own=parse_indexed,
)

FAMILIES = {
    "DeepseekV32ForCausalLM": DEEPSEEK_V32,
    "GlmMoeDsaForCausalLM": replace(
        DEEPSEEK_V32,
        model_type="glm_moe_dsa",
        defaults=DEEPSEEK_V32.defaults
        | {
            "vocab_size": 154880,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "num_hidden_layers": 78,
            "num_attention_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_group": 1,
            "topk_group": 1,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "index_n_heads": 32,
            "indexer_rope_interleave": True,
        },
    ),
}
