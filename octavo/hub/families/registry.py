"""The families of models, by the architecture that a config.json names.

To add a family, write its reading rules in a file beside this one and add its architectures to :data:`FAMILIES`.
"""

import difflib
from typing import Any, Protocol

from octavo.hub.families import (
    baichuan,
    bert,
    bloom,
    cohere,
    cohere_moe,
    dbrx,
    deepseek,
    ernie_moe,
    falcon,
    gated_moe,
    gemma,
    gemma3n,
    glm_moe,
    gpt2,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    hunyuan4,
    hunyuan_moe,
    indexed,
    jais2,
    llama,
    llama4,
    llama_variants,
    longcat,
    mamba2,
    mimo2,
    mixtral,
    modernbert,
    mpt,
    nemotron,
    olmo,
    olmo1,
    olmo_moe,
    opt,
    orion,
    persimmon,
    phi,
    qwen,
    qwen_moe,
    rotary_bert,
    stablelm,
    starcoder2,
)
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


_ENCODERS: dict[str, Family] = {**bert.FAMILIES, **rotary_bert.FAMILIES, **modernbert.FAMILIES}

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **llama4.FAMILIES,
    **llama_variants.FAMILIES,
    **qwen.FAMILIES,
    **gemma.FAMILIES,
    **gemma3n.FAMILIES,
    **granite.FAMILIES,
    **olmo.FAMILIES,
    **deepseek.FAMILIES,
    **indexed.FAMILIES,
    **longcat.FAMILIES,
    **gpt_oss.FAMILIES,
    **mimo2.FAMILIES,
    **mixtral.FAMILIES,
    **qwen_moe.FAMILIES,
    **olmo_moe.FAMILIES,
    **glm_moe.FAMILIES,
    **gated_moe.FAMILIES,
    **hunyuan_moe.FAMILIES,
    **hunyuan4.FAMILIES,
    **ernie_moe.FAMILIES,
    **cohere_moe.FAMILIES,
    **dbrx.FAMILIES,
    **mamba2.FAMILIES,
    **baichuan.FAMILIES,
    **bloom.FAMILIES,
    **cohere.FAMILIES,
    **falcon.FAMILIES,
    **gpt2.FAMILIES,
    **gpt_neo.FAMILIES,
    **gpt_neox.FAMILIES,
    **gptj.FAMILIES,
    **jais2.FAMILIES,
    **mpt.FAMILIES,
    **nemotron.FAMILIES,
    **olmo1.FAMILIES,
    **opt.FAMILIES,
    **orion.FAMILIES,
    **persimmon.FAMILIES,
    **phi.FAMILIES,
    **stablelm.FAMILIES,
    **starcoder2.FAMILIES,
    **_ENCODERS,
}


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
    return [name for name in FAMILIES if (name in _ENCODERS) is is_encoder]
