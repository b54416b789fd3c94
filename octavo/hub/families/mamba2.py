"""Mamba-2: configuration parsing."""

import math
from dataclasses import dataclass

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, invalid
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Mamba2Fields:
    """Mamba-2's own quantities; see :class:`octavo.layers.mamba2.StateSpaceSizes`.

    Attributes:
        time_step_limit: bounds of the step sizes.
        use_bias, use_conv_bias: whether projections and convolution have biases.
    """

    num_groups: int
    state_size: int
    conv_width: int
    time_step_limit: tuple[float, float]
    use_bias: bool
    use_conv_bias: bool


def _parse_own(values: ConfigValues, config: ModelConfig) -> Mamba2Fields:
    num_groups = values.count("n_groups")
    if config.num_heads % num_groups:
        raise invalid("n_groups", num_groups, f"a divisor of num_heads = {config.num_heads}")
    if config.hidden_act not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"Mamba-2 with the activation {config.hidden_act!r} is not supported; only silu is."
        )
    low, high = _limit(values.get("time_step_limit"))
    conv_width = values.count("conv_kernel", limit=64, least=2)
    return Mamba2Fields(
        num_groups=num_groups,
        state_size=values.count("state_size"),
        conv_width=conv_width,
        time_step_limit=(low, high),
        use_bias=values.flag("use_bias"),
        use_conv_bias=values.flag("use_conv_bias"),
    )


def _limit(value: object) -> tuple[float, float]:
    bounds = value if isinstance(value, list) and len(value) == 2 else [None, None]
    # Hugging Face writes what JSON has no number for as an object.
    low, high = (math.inf if bound == {"__float__": "Infinity"} else bound for bound in bounds)
    if isinstance(low, int | float) and isinstance(high, int | float) and 0 <= low <= high:
        return float(low), float(high)
    raise invalid("time_step_limit", value, "a lower and an upper bound")


FAMILIES = {
    "Mamba2ForCausalLM": DecoderFamily(
        model="octavo.models.mamba2:Mamba2ForCausalLM",
        model_type="mamba2",
        names={"num_attention_heads": "num_heads", "rms_norm_eps": "layer_norm_epsilon"},
        defaults={
            "vocab_size": 32768,
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "num_attention_heads": 128,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "n_groups": 8,
            "state_size": 128,
            "conv_kernel": 4,
            "time_step_limit": [0.0, float("inf")],
            "use_conv_bias": True,
            "eos_token_id": 2,
        },
        fixed={
            **NO_WINDOW,
            "num_key_value_heads": None,
            "intermediate_size": 1,  # there is no feed-forward part
            "max_position_embeddings": 32768,  # there are no positions: a length that batch state has room for
        },
        parse_own=_parse_own,
    ),
}
