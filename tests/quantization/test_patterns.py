"""Names of layers in configurations, which are looked up in other ways than as the patterns that they are."""

import pytest

from octavo.errors import UnsupportedModelError
from octavo.quantization.patterns import compile_name, module_names

LAYERS = (
    "lm_head",
    "model.layers.1.self_attn.q_proj",
    "model.layers.10.self_attn.q_proj",
    "model.layers.1.mlp.experts.12.down_proj",
    "model.layers.2.mlp.gate",
)
NAMES = (
    *("lm_head", "model.layers.1", "layers.1", "mlp", "experts.1", "down_proj", "gate_proj", "odel"),
    *("model.layers.1*", "layers.1*", "experts.1*", "down*", "own*", "1*", "*"),
    *("*down*", "*down_proj", "model.layers.*.mlp", "layers.?.mlp*", "re:.*q_proj", "re:layers", r"re:.*\.experts\..*"),
)


@pytest.mark.parametrize("name", NAMES)
def test_names_mean_what_their_patterns_match(name: str) -> None:
    alone, together = module_names([name]), module_names(["x", "y*", "*z", name])
    for layer in LAYERS:
        expected = compile_name(name).match(layer) is not None
        assert alone.match(layer) == together.match(layer) == expected, layer


def test_what_is_no_pattern_is_rejected() -> None:
    with pytest.raises(UnsupportedModelError, match="no regular expression"):
        module_names(["a", "re:("])
    with pytest.raises(UnsupportedModelError, match="at most 1000 characters"):
        module_names(["a" * 1001 + "*"])
