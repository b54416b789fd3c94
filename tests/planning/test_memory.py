"""Memory estimates against the parameters of models that were really built."""

import pytest
import torch
from tiny_models import FAMILIES, tiny_config

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.models.registry import build_model
from octavo.planning.memory import block_bytes, num_parameters, parameters_read_per_token


def built_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        model = build_model(config, Build(), 16)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("tie_word_embeddings", [True, False])
@pytest.mark.parametrize("architecture", list(FAMILIES))
def test_estimates_are_within_a_hundredth_of_the_built_model(architecture: str, tie_word_embeddings: bool) -> None:
    config = tiny_config(
        architecture,
        num_layers=4,
        tie_word_embeddings=tie_word_embeddings,
        attention_bias=architecture == "Qwen2ForCausalLM",
    )
    assert num_parameters(config) == pytest.approx(built_parameters(config), rel=0.01)


@pytest.mark.parametrize(("attention_bias", "mlp_bias"), [(True, False), (False, True), (True, True)])
def test_biases_are_counted(attention_bias: bool, mlp_bias: bool) -> None:
    config = tiny_config(attention_bias=attention_bias, mlp_bias=mlp_bias)
    assert num_parameters(config) == pytest.approx(built_parameters(config), rel=0.01)


def test_a_decode_step_reads_everything_but_an_untied_embedding() -> None:
    tied, untied = tiny_config(), tiny_config(tie_word_embeddings=False)
    last_norm = tied.hidden_size
    assert parameters_read_per_token(tied) == num_parameters(tied) - last_norm
    assert parameters_read_per_token(untied) == parameters_read_per_token(tied)


def test_a_block_holds_keys_and_values_of_its_layers() -> None:
    # Two tensors, three layers, 16 tokens, 2 heads of 16 values of 2 bytes.
    assert block_bytes(tiny_config(), 16, 3, 2) == 2 * 3 * 16 * 2 * 16 * 2
