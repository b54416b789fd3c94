"""The families of models, by the architecture that a config.json names.

To add a family, write its reading rules in a file beside this one and add its architectures to :data:`FAMILIES`.
"""

import difflib
from typing import Any, Protocol

from octavo.hub.families import bert, deepseek, gemma3, llama, mamba2, qwen
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
            UnsupportedModelError: a key is missing or its value cannot be.
        """
        ...


FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **qwen.FAMILIES,
    **gemma3.FAMILIES,
    **deepseek.FAMILIES,
    **mamba2.FAMILIES,
    **bert.FAMILIES,
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
    return [name for name in FAMILIES if (name in bert.FAMILIES) is is_encoder]
