"""Makes rotary embeddings static whose frequencies depend on the longest position of a batch."""

from typing import Any

from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import ModelConfig

_DEFAULT = "default"


def fix_frequencies(base: nn.Module, config: ModelConfig, max_positions: int) -> None:
    """Choose the frequencies once, by the longest possible sequence, instead of in every step.

    ``dynamic`` frequencies are the usual ones up to the model's own length; ``longrope`` has a set for sequences up to
    the original length and another for longer ones.

    Args:
        max_positions: maximum sequence length in tokens.

    Raises:
        UnsupportedModelError: dynamic frequencies would have to change.
    """
    for module in base.modules():
        kind = vars(module).get("rope_type")
        if isinstance(kind, str):
            vars(module)["rope_type"] = _fixed(module, kind, config, max_positions, None)
        elif isinstance(kind, dict):
            vars(module)["rope_type"] = {
                layer: _fixed(module, each, config, max_positions, layer) for layer, each in kind.items()
            }


def _fixed(module: Any, kind: str, config: ModelConfig, max_positions: int, layer: str | None) -> str:
    """The kind of scaling that the module is to have from now on."""
    if "dynamic" in kind:
        if max_positions > config.max_position_embeddings:
            raise UnsupportedModelError(
                f"The model's rotary frequencies change beyond {config.max_position_embeddings} positions "
                f"(rope_type={kind}), which is not supported; lower max_model_len."
            )
        return _DEFAULT
    if kind == "longrope":
        _choose_long(module, max_positions, layer)
        return _DEFAULT
    return kind


def _choose_long(module: Any, max_positions: int, layer: str | None) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = module.config.rope_parameters
    parameters = parameters if layer is None else parameters[layer]
    original = parameters["original_max_position_embeddings"]
    if max_positions <= original:
        return
    name = "inv_freq" if layer is None else f"{layer}_inv_freq"
    options = {} if layer is None else {"layer_type": layer}
    long, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, seq_len=original + 1, **options)
    getattr(module, name).copy_(long)
