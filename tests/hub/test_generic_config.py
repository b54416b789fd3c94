"""Which models run as the transformers library has them, and what is read from their configurations."""

from typing import Any

import pytest
import transformers

from octavo.config import EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub.config_file import parse_config
from octavo.hub.families.generic import GenericFields
from octavo.hub.families.registry import FAMILIES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}
NANOCHAT = LLAMA | {"architectures": ["NanoChatForCausalLM"], "model_type": "nanochat", "head_dim": 12}


def _raw(kind: type[transformers.PreTrainedConfig], architecture: str, **changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = kind(**changes).to_dict()
    return raw | {"architectures": [architecture]}


def test_a_family_goes_first_unless_the_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(parse_config(LLAMA).own, GenericFields)
    assert isinstance(parse_config(LLAMA, "transformers").own, GenericFields)
    monkeypatch.delitem(FAMILIES, "LlamaForCausalLM")
    assert isinstance(parse_config(LLAMA).own, GenericFields)
    for model_impl in ("octavo", "vllm"):
        assert not isinstance(parse_config(LLAMA, model_impl).own, GenericFields)


def test_the_setting_has_these_values_only() -> None:
    assert EngineConfig.from_kwargs(model="m", model_impl="vllm").model.model_impl == "vllm"
    with pytest.raises(ConfigError, match="model_impl"):
        EngineConfig.from_kwargs(model="m", model_impl="terratorch")


def test_an_architecture_that_the_library_lacks() -> None:
    with pytest.raises(UnsupportedModelError, match="no causal language model and no encoder 'NewForCausalLM'"):
        parse_config(LLAMA | {"architectures": ["NewForCausalLM"]}, "transformers")
    with pytest.raises(UnsupportedModelError, match="type 'new' is unknown"):
        parse_config(LLAMA | {"model_type": "new"}, "transformers")


def test_the_librarys_names_and_defaults_are_read() -> None:
    raw = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3}
    config = parse_config(raw, "transformers")
    assert (config.hidden_size, config.num_heads, config.num_layers) == (64, 4, 3)
    assert (config.max_position_embeddings, config.intermediate_size, config.vocab_size) == (1024, 256, 50257)
    assert config.eos_token_ids == (50256,)


def test_a_pooling_form_is_built_on_the_decoder() -> None:
    config = parse_config(NANOCHAT | {"architectures": ["NanoChatModel"]}, "transformers")
    assert config.architecture == "NanoChatForCausalLM"
    assert config.raw["architectures"] == ["NanoChatModel"]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (_raw(transformers.BartConfig, "BartForCausalLM"), "encoder and a decoder"),
        (_raw(transformers.Gemma3Config, "Gemma3ForConditionalGeneration"), "multimodal"),
        (_raw(transformers.Qwen3NextConfig, "Qwen3NextForCausalLM"), "recurrent state"),
        (_raw(transformers.ErnieConfig, "ErnieForCausalLM"), "it is an encoder"),
        (_raw(transformers.FalconConfig, "FalconForCausalLM", alibi=True), "ALiBi"),
    ],
)
def test_what_is_no_decoder_of_text_is_rejected_by_name(raw: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{raw['architectures'][0]} cannot be used: .*{reason}"):
        parse_config(raw, "transformers")


def test_values_that_the_library_rejects() -> None:
    with pytest.raises(UnsupportedModelError, match="hidden_size"):
        parse_config(NANOCHAT | {"hidden_size": "many"}, "transformers")
