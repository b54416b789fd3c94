"""GGUF's architectures without experts, and the metadata that only one family's files have."""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_MAX_FACTORS = 4096

GRANITE_SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
LOGIT_SCALE = {"logit_scale": "logit_scale"}
QK_NORM = {"use_qk_norm": "blk.0.attn_q_norm.weight"}


@dataclass(frozen=True, slots=True)
class GGUFFamily:
    """How the metadata of one architecture becomes a configuration with Hugging Face's names.

    Attributes:
        architecture: Hugging Face's name of it.
        keys: Hugging Face's keys → GGUF's without the architecture, beside those that all families have.
        tensors: flags → the tensors whose presence they tell.
        has_rotary_size: whether the file says how many values of a head rotate.
        adjust: completes the configuration in place.
    """

    architecture: str
    keys: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    has_rotary_size: bool = False
    adjust: Callable[[dict[str, Any], GGUFFile], None] | None = None

    def complete(self, raw: dict[str, Any], file: GGUFFile) -> None:
        """Add to a configuration what only this family's files have."""
        raw |= _own_values(file, self.keys)
        raw |= {name: tensor in file.tensors for name, tensor in self.tensors.items()}
        if self.has_rotary_size:
            _set_partial_rotary_factor(raw, file)
        if self.adjust is not None:
            self.adjust(raw, file)


def own_value(file: GGUFFile, key: str) -> Any:
    """The value of a key that begins with the file's architecture; None if there is none."""
    return file.metadata.get(f"{file.metadata['general.architecture']}.{key}")


def _own_values(file: GGUFFile, keys: Mapping[str, str]) -> dict[str, Any]:
    """Of names → keys as for :func:`own_value`, the values that the file has."""
    values = {name: own_value(file, key) for name, key in keys.items()}
    return {name: value for name, value in values.items() if value is not None}


def read_factors(file: GGUFFile, tensor: GGUFTensor) -> list[float]:
    """The values of a list of float32 numbers, such as divisors of rotary frequencies.

    Raises:
        UnsupportedModelError: it is something else.
        WeightsError: the file cannot be read.
    """
    count = math.prod(tensor.shape)
    if tensor.type_name != "F32" or not 1 < count <= _MAX_FACTORS:
        raise UnsupportedModelError(f"{file.path}: {tensor.name} is not a list of float32 divisors.")
    try:
        with file.path.open("rb") as data:
            data.seek(tensor.offset)
            return list(struct.unpack(f"<{count}f", data.read(tensor.num_bytes)))
    except (OSError, struct.error) as error:
        raise WeightsError(f"{file.path} cannot be read: {error}.") from None


def _set_partial_rotary_factor(raw: dict[str, Any], file: GGUFFile) -> None:
    """Compute the share of a head that rotates; GGUF has its size."""
    rotary_dim = own_value(file, "rope.dimension_count")
    head_dim = raw.get("head_dim")
    hidden_size, num_heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if head_dim is None and isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        head_dim = hidden_size // num_heads
    if isinstance(rotary_dim, int) and isinstance(head_dim, int) and 0 < rotary_dim <= head_dim:
        # Half a dimension more, since the product with the head size is rounded down later.
        raw["partial_rotary_factor"] = min((rotary_dim + 0.5) / head_dim, 1.0)


def _llama(raw: dict[str, Any], file: GGUFFile) -> None:
    """Llama, Mistral and Mixtral share a name in GGUF; only Mixtral has experts, only Mistral a sliding window."""
    raw.setdefault("head_dim", own_value(file, "rope.dimension_count"))
    if raw.get("num_experts"):
        raw["architectures"] = ["MixtralForCausalLM"]
    elif "sliding_window" in raw:
        raw["architectures"] = ["MistralForCausalLM"]


def _gemma(raw: dict[str, Any], file: GGUFFile) -> None:
    """Scores are divided by the root of the head size, but in the largest model by that of hidden size over heads."""
    largest = _GEMMA2_27B_LAYERS if file.metadata["general.architecture"] == "gemma2" else _GEMMA3_27B_LAYERS
    scalar = raw.get("head_dim")
    hidden_size, num_heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    is_largest = raw.get("num_hidden_layers") == largest
    if is_largest and isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        scalar = hidden_size // num_heads
    raw["query_pre_attn_scalar"] = scalar


def _gemma3n(raw: dict[str, Any], file: GGUFFile) -> None:
    """Some sizes are visible in the tensors only; sparsity is in deviations of a normal distribution from its mean."""
    _set_layer_types(raw, file)
    deviations = own_value(file, "activation_sparsity_scale")
    if isinstance(deviations, list):
        raw["activation_sparsity_pattern"] = [NormalDist().cdf(number) for number in deviations]
    for key, name in {"vocab_size_per_layer_input": "per_layer_token_embd", "laurel_rank": "blk.0.laurel_l"}.items():
        tensor = file.tensors.get(f"{name}.weight")
        raw[key] = None if tensor is None else tensor.shape[0]
    projections = file.tensors.get("altup_proj.weight")
    raw["num_stacked"] = None if projections is None else projections.shape[0]


def _phi3(raw: dict[str, Any], file: GGUFFile) -> None:
    """A window of 0 is none."""
    raw["sliding_window"] = raw.get("sliding_window") or None


def _glm4(raw: dict[str, Any], file: GGUFFile) -> None:
    if own_value(file, "rope.dimension_sections"):
        raise UnsupportedModelError(f"{file.path} holds a model with three-part positions, which is not supported.")


def _minicpm(raw: dict[str, Any], file: GGUFFile) -> None:
    """Factors that a file lacks are those of the first MiniCPM."""
    num_layers, hidden_size = raw.get("num_hidden_layers"), raw.get("hidden_size")
    residual_scale, logit_scale = own_value(file, "residual_scale"), own_value(file, "logit_scale")
    raw["scale_emb"] = file.metadata.get("minicpm.embedding_scale", 12.0)
    raw["scale_depth"], raw["dim_model_base"] = 1.4, 256
    if isinstance(residual_scale, float) and isinstance(num_layers, int):
        raw["scale_depth"] = residual_scale * math.sqrt(num_layers)
    if isinstance(logit_scale, float) and isinstance(hidden_size, int) and logit_scale > 0:
        raw["dim_model_base"] = hidden_size / logit_scale


def _olmo2(raw: dict[str, Any], file: GGUFFile) -> None:
    """OLMo 2 and 3 share a name in GGUF; only OLMo 3 has windows."""
    if "sliding_window" in raw:
        raw["architectures"] = ["Olmo3ForCausalLM"]
        _set_layer_types(raw, file)


def _exaone4(raw: dict[str, Any], file: GGUFFile) -> None:
    raw.setdefault("sliding_window", None)
    _set_layer_types(raw, file)


def _set_layer_types(raw: dict[str, Any], file: GGUFFile) -> None:
    """Which layers have windows, where a file has a list of it."""
    pattern = own_value(file, "attention.sliding_window_pattern")
    if isinstance(pattern, list):
        raw["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]


def _mpt(raw: dict[str, Any], file: GGUFFile) -> None:
    names = {"clip_qkv": "attention.clamp_kqv", "alibi_bias_max": "attention.max_alibi_bias"}
    raw["attn_config"] = _own_values(file, names)


def _falcon(raw: dict[str, Any], file: GGUFFile) -> None:
    """Only the newer architecture has several key/value heads; its models with two norms per layer are rejected."""
    if "blk.0.attn_norm_2.weight" in file.tensors:
        raise UnsupportedModelError(f"{file.path} holds a Falcon with two norms in a layer, which is not supported.")
    num_kv_heads = raw.get("num_key_value_heads") or 1
    raw |= {"num_kv_heads": num_kv_heads, "new_decoder_architecture": num_kv_heads != 1, "num_ln_in_parallel_attn": 1}


def _stablelm(raw: dict[str, Any], file: GGUFFile) -> None:
    """Norms, biases and parallel parts are visible in the tensors only."""
    raw["use_qkv_bias"] = raw["attention_bias"]
    raw["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in file.tensors


FAMILIES: dict[str, GGUFFamily] = {
    "llama": GGUFFamily("LlamaForCausalLM", adjust=_llama),
    "internlm2": GGUFFamily("LlamaForCausalLM"),
    "qwen2": GGUFFamily("Qwen2ForCausalLM"),
    "qwen3": GGUFFamily("Qwen3ForCausalLM"),
    "gemma": GGUFFamily("GemmaForCausalLM"),
    "gemma2": GGUFFamily("Gemma2ForCausalLM", adjust=_gemma),
    "gemma3": GGUFFamily("Gemma3ForCausalLM", adjust=_gemma),
    "gemma3n": GGUFFamily(
        "Gemma3nForCausalLM",
        keys={
            "altup_active_idx": "altup.active_idx",
            "altup_num_inputs": "altup.num_inputs",
            "hidden_size_per_layer_input": "embedding_length_per_layer_input",
            "num_kv_shared_layers": "attention.shared_kv_layers",
        },
        adjust=_gemma3n,
    ),
    # The original length stands beside the scaling, as in Phi-3's config.json.
    "phi3": GGUFFamily(
        "Phi3ForCausalLM",
        keys={"original_max_position_embeddings": "rope.scaling.original_context_length"},
        has_rotary_size=True,
        adjust=_phi3,
    ),
    "glm4": GGUFFamily("Glm4ForCausalLM", has_rotary_size=True, adjust=_glm4),
    "granite": GGUFFamily("GraniteForCausalLM", keys=GRANITE_SCALES),
    "minicpm": GGUFFamily("MiniCPMForCausalLM", adjust=_minicpm),
    "olmo2": GGUFFamily("Olmo2ForCausalLM", adjust=_olmo2),
    "exaone": GGUFFamily("ExaoneForCausalLM"),
    "exaone4": GGUFFamily("Exaone4ForCausalLM", adjust=_exaone4),
    "smollm3": GGUFFamily("SmolLM3ForCausalLM"),
    "arcee": GGUFFamily("ArceeForCausalLM"),
    "seed_oss": GGUFFamily("SeedOssForCausalLM", tensors={"attention_out_bias": "blk.0.attn_output.bias"}),
    "ernie4_5": GGUFFamily("Ernie4_5ForCausalLM"),
    "hunyuan-dense": GGUFFamily("HunYuanDenseV1ForCausalLM"),
    "gpt2": GGUFFamily("GPT2LMHeadModel"),
    "starcoder": GGUFFamily("GPTBigCodeForCausalLM"),
    "gptneox": GGUFFamily(
        "GPTNeoXForCausalLM",
        keys={"use_parallel_residual": "use_parallel_residual"},
        tensors={"attention_bias": "blk.0.attn_qkv.bias"},
        has_rotary_size=True,
    ),
    "bloom": GGUFFamily("BloomForCausalLM"),
    "mpt": GGUFFamily("MptForCausalLM", adjust=_mpt),
    "falcon": GGUFFamily("FalconForCausalLM", adjust=_falcon),
    "starcoder2": GGUFFamily("Starcoder2ForCausalLM"),
    "phi2": GGUFFamily("PhiForCausalLM", has_rotary_size=True),
    "stablelm": GGUFFamily(
        "StableLmForCausalLM",
        tensors={"qk_layernorm": "blk.0.attn_q_norm.weight"},
        has_rotary_size=True,
        adjust=_stablelm,
    ),
    "command-r": GGUFFamily("CohereForCausalLM", keys=LOGIT_SCALE, tensors=QK_NORM),
    "cohere2": GGUFFamily("Cohere2ForCausalLM", keys=LOGIT_SCALE),
    "nemotron": GGUFFamily("NemotronForCausalLM", tensors={"mlp_bias": "blk.0.ffn_up.bias"}, has_rotary_size=True),
    "olmo": GGUFFamily("OlmoForCausalLM", keys={"clip_qkv": "attention.clamp_kqv"}),
}
"""By GGUF's name of the architecture; those with experts are in :mod:`octavo.hub.gguf_experts`."""
