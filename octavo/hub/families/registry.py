"""The families of models, by the architecture that a config.json names.

To add a family, write its reading rules in a file beside this one, as a table ``FAMILIES``, and list the file with its
architectures here. A file is imported when a model of its family is: reading all of them takes longer than the rest of
a configuration.
"""

import difflib
from pkgutil import resolve_name
from typing import Any, Protocol

from octavo.hub.encoder_config import HEADS
from octavo.hub.model_config import ModelConfig


class Family(Protocol):
    """Reading rules of a family's configurations.

    Attributes:
        model: the model's class, as ``module:class``.
    """

    @property
    def model(self) -> str: ...

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """The configuration of a model.

        Args:
            raw: what config.json holds; of a model with several parts, its language part.

        Raises:
            UnsupportedModelError: a key is missing or has an invalid value.
        """
        ...


def _with_heads(*prefixes: str) -> tuple[str, ...]:
    return tuple(prefix + head for prefix in prefixes for head in HEADS)


_DECODERS = {
    "llama": (
        "LlamaForCausalLM",
        "MistralForCausalLM",
    ),
    "llama4": ("Llama4ForCausalLM",),
    "llama_variants": (
        "LLaMAForCausalLM",
        "AquilaForCausalLM",
        "XverseForCausalLM",
        "InternLMForCausalLM",
        "InternLM2ForCausalLM",
        "IQuestCoderForCausalLM",
        "ExaoneForCausalLM",
        "Phi3ForCausalLM",
        "GlmForCausalLM",
        "Glm4ForCausalLM",
        "SmolLM3ForCausalLM",
        "ArceeForCausalLM",
        "ApertusForCausalLM",
        "SeedOssForCausalLM",
        "Ernie4_5ForCausalLM",
        "HeliumForCausalLM",
        "CwmForCausalLM",
        "MinistralForCausalLM",
        "Ministral3ForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "InternLM3ForCausalLM",
    ),
    "qwen": (
        "Qwen2ForCausalLM",
        "MiMoForCausalLM",
        "Qwen3ForCausalLM",
    ),
    "gemma": (
        "GemmaForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "VaultGemmaForCausalLM",
    ),
    "gemma3n": (
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
    ),
    "granite": (
        "GraniteForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteSWAForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "HyperCLOVAXForCausalLM",
        "MiniCPMForCausalLM",
        "MiniCPM3ForCausalLM",
        "TeleFLMForCausalLM",
    ),
    "olmo": (
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "Exaone4ForCausalLM",
    ),
    "deepseek": (
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "AXK1ForCausalLM",
    ),
    "indexed": (
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
    ),
    "longcat": ("LongcatFlashForCausalLM",),
    "gpt_oss": ("GptOssForCausalLM",),
    "mimo2": ("MiMoV2FlashForCausalLM",),
    "mixtral": (
        "MixtralForCausalLM",
        "MiniMaxM2ForCausalLM",
        "PhimoeForCausalLM",
        "PhiMoEForCausalLM",
    ),
    "qwen_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "MellumForCausalLM",
        "FlintForCausalLM",
    ),
    "olmo_moe": (
        "OlmoeForCausalLM",
        "FlexOlmoForCausalLM",
    ),
    "glm_moe": (
        "Glm4MoeForCausalLM",
        "Dots1ForCausalLM",
        "ExaoneMoeForCausalLM",
        "SolarOpenForCausalLM",
        "ExaoneMoEForCausalLM",
    ),
    "gated_moe": (
        "AfmoeForCausalLM",
        "LagunaForCausalLM",
    ),
    "step35": ("Step3p5ForCausalLM",),
    "hunyuan_moe": (
        "HunYuanMoEV1ForCausalLM",
        "HYV3ForCausalLM",
    ),
    "hunyuan4": ("HYV4ForCausalLM",),
    "ernie_moe": ("Ernie4_5_MoeForCausalLM",),
    "cohere_moe": ("Cohere2MoeForCausalLM",),
    "dbrx": ("DbrxForCausalLM",),
    "mamba2": ("Mamba2ForCausalLM",),
    "baichuan": (
        "BaiChuanForCausalLM",
        "BaichuanForCausalLM",
    ),
    "bloom": ("BloomForCausalLM",),
    "cohere": (
        "CohereForCausalLM",
        "Cohere2ForCausalLM",
    ),
    "falcon": ("FalconForCausalLM",),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
    ),
    "gpt_neo": ("GPTNeoForCausalLM",),
    "gpt_neox": ("GPTNeoXForCausalLM",),
    "gptj": (
        "GPTJForCausalLM",
        "CodeGenForCausalLM",
    ),
    "jais2": ("Jais2ForCausalLM",),
    "mpt": (
        "MptForCausalLM",
        "MPTForCausalLM",
    ),
    "nemotron": ("NemotronForCausalLM",),
    "olmo1": ("OlmoForCausalLM",),
    "opt": ("OPTForCausalLM",),
    "orion": ("OrionForCausalLM",),
    "persimmon": ("PersimmonForCausalLM",),
    "phi": ("PhiForCausalLM",),
    "stablelm": ("StableLmForCausalLM",),
    "starcoder2": ("Starcoder2ForCausalLM",),
}
"""Files beside this one → the architectures that they read; encoders follow."""

_ENCODERS = {
    "bert": (
        *_with_heads("Bert", "Roberta", "XLMRoberta", "DistilBert"),
        "HF_ColBERT",
        "BertSpladeSparseEmbeddingModel",
    ),
    "rotary_bert": (
        *_with_heads("NomicBert", "Gte", "New", "GteNew", "JinaEmbeddingsV3"),
        "ColBERTJinaRobertaModel",
    ),
    "modernbert": (*_with_heads("ModernBert"), "ColBERTModernBertModel"),
}

FAMILIES: dict[str, str] = {
    name: f"octavo.hub.families.{file}:FAMILIES" for file, names in (_DECODERS | _ENCODERS).items() for name in names
}
"""Architecture → the table that has its :class:`Family`, as ``module:table``."""

_ENCODER_NAMES = frozenset(name for names in _ENCODERS.values() for name in names)


def family_of(architecture: str) -> Family:
    """The family of one of :data:`FAMILIES`; imports its file."""
    family: Family = resolve_name(FAMILIES[architecture])[architecture]
    return family


def unsupported_architecture(architecture: str, *, has_own_code: bool = False) -> str:
    """Sentences on an architecture that is not known, with the names that are near it.

    Args:
        has_own_code: the model brings code for it (``auto_map`` in config.json).
    """
    near = difflib.get_close_matches(architecture, _names(is_encoder=False), n=3, cutoff=0.5)
    near = near or difflib.get_close_matches(architecture, _names(is_encoder=True), n=3, cutoff=0.75)
    hint = f"Near it are: {', '.join(near)}." if near else f"Supported are: {', '.join(sorted(FAMILIES))}."
    if has_own_code:
        hint = "Its code is in the model's folder, and Octavo never runs such code, trusted or not. " + hint
    return f"The architecture {architecture!r} is not supported. {hint}"


def _names(*, is_encoder: bool) -> list[str]:
    return [name for name in FAMILIES if (name in _ENCODER_NAMES) is is_encoder]
