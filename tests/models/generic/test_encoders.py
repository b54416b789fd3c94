"""Encoders that run as the transformers library has them: what is read of them, and what is rejected."""

from typing import Any

import pytest
import torch
import transformers
from library_models import SIZES

from octavo.errors import UnsupportedModelError
from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.hub.encoder_config import EncoderFields
from octavo.hub.families import generic_encoder
from octavo.layers.build import Build
from octavo.models.generic.encoder import GenericEncoder
from octavo.models.generic.trace import trace

ELECTRA = (transformers.ElectraConfig, "ElectraModel")
CAMEMBERT = (transformers.CamembertConfig, "CamembertModel")


def encoder_of(kind: Any, architecture: str, **changes: Any) -> ModelConfig:
    sizes = {key: size for key, size in SIZES.items() if key not in ("head_dim", "num_key_value_heads")}
    raw: dict[str, Any] = kind(**(sizes | changes)).to_dict()
    return parse_config(raw | {"architectures": [architecture]})


def build(config: ModelConfig) -> GenericEncoder:
    with torch.device("meta"):
        return GenericEncoder(config, Build(), 32)


def test_rotation_stays_the_librarys() -> None:
    raw = transformers.CohereConfig(**SIZES).to_dict()
    config = parse_config(raw | {"architectures": ["CohereForCausalLM"]}, "transformers")
    assert all(call.rotation is not None for call in trace(config, 32).attention)
    eurobert = encoder_of(transformers.EuroBertConfig, "EuroBertModel")
    assert {call.rotation for call in trace(eurobert, 32).attention} == {None}


def test_texts_are_as_long_as_the_table_of_positions() -> None:
    assert encoder_of(*ELECTRA).max_position_embeddings == 64
    camembert = encoder_of(*CAMEMBERT, pad_token_id=1)
    assert (camembert.max_position_embeddings, camembert.own_as(EncoderFields).position_offset) == (62, 2)
    build(camembert)


def test_forms_with_heads_are_the_same_encoder() -> None:
    for form in ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"):
        config = encoder_of(transformers.ElectraConfig, f"Electra{form}")
        assert config.architecture == "ElectraModel" and config.is_encoder
    assert encoder_of(*ELECTRA).own_as(EncoderFields).prefix == "electra."


def test_attention_calls_of_shared_layers() -> None:
    config = encoder_of(transformers.AlbertConfig, "AlbertModel", num_hidden_layers=3)
    calls = trace(config, 32).attention
    assert len(calls) == 3 and len({call.module for call in calls}) == 1


def test_positions_that_begin_elsewhere_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic_encoder, "_AFTER_PADDING", ())
    config = encoder_of(*CAMEMBERT, pad_token_id=1)
    with pytest.raises(UnsupportedModelError, match="positions begin at 2, where 0 was expected"):
        build(config)


@pytest.mark.parametrize(
    ("kind", "architecture", "changes", "reason"),
    [
        (transformers.BartConfig, "BartModel", {}, "no encoder|encoder and a decoder|not supported"),
        (transformers.ModernVBertConfig, "ModernVBertForMaskedLM", {}, "multimodal"),
        (*ELECTRA, {"is_decoder": True}, "it is a decoder"),
        (transformers.EuroBertConfig, "EuroBertForSequenceClassification", {}, "its classifier has a form"),
        (transformers.EuroBertConfig, "EuroBertForTokenClassification", {}, "its classifier has a form"),
        (transformers.DebertaV2Config, "DebertaV2Model", {}, "mixes tokens outside of attention"),
        (transformers.MPNetConfig, "MPNetModel", {}, "interface|masks"),
        (transformers.RoFormerConfig, "RoFormerModel", {}, "position_ids|masks"),
        (transformers.FNetConfig, "FNetModel", {}, "interface"),
        (transformers.EsmConfig, "EsmModel", {"token_dropout": True, "mask_token_id": 5}, "mixes tokens"),
    ],
)
def test_what_cannot_be_served_is_rejected_by_name(
    kind: Any, architecture: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        build(encoder_of(kind, architecture, **changes))
