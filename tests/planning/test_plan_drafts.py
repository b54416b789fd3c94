"""What ``speculative_config`` may say."""

from dataclasses import replace
from typing import Any

import pytest
from tiny_models import tiny_config

from octavo.config import EngineConfig
from octavo.config.settings import ModelSettings, SchedulerSettings
from octavo.errors import ConfigError
from octavo.planning.drafts import decode_length, resolve_drafts
from octavo.records import Latent, NgramDrafts


def settings_of(given: dict[str, Any] | None) -> EngineConfig:
    return EngineConfig(model=ModelSettings(model="any"), scheduler=SchedulerSettings(speculative_config=given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, None),
        ({"method": "ngram", "num_speculative_tokens": 4}, NgramDrafts(4, 5, 5)),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, NgramDrafts(3, 4, 4)),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            NgramDrafts(3, 2, 4),
        ),
    ],
)
def test_what_is_asked_for(given: dict[str, Any] | None, expected: NgramDrafts | None) -> None:
    assert resolve_drafts(settings_of(given), is_pooling=False) == expected


NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "eagle", "num_speculative_tokens": 4}, "'eagle'"),
        ({"num_speculative_tokens": 4}, "None"),
        ({"method": "ngram"}, "num_speculative_tokens is a whole number"),
        (NGRAM | {"num_speculative_tokens": 0}, "from 1 to 32, not 0"),
        (NGRAM | {"num_speculative_tokens": True}, "not True"),
        (NGRAM | {"prompt_lookup_min": 6, "prompt_lookup_max": 5}, "above prompt_lookup_max"),
        (NGRAM | {"prompt_lookup_max": 1000}, "prompt_lookup_max is a whole number"),
        (NGRAM | {"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size"),
    ],
)
def test_what_is_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_drafts(settings_of(given), is_pooling=False)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "num_drafts", "expected"),
    [(16, 8, 0, 1), (16, 8, 3, 4), (32, 8, 15, 16), (32, 8, 16, 1), (24, 1, 2, 1), (64, 1, 0, 1)],
)
def test_rows_with_drafts_decode_if_a_tile_holds_their_queries(
    num_heads: int, num_kv_heads: int, num_drafts: int, expected: int
) -> None:
    config = replace(tiny_config(), num_heads=num_heads)
    config = replace(config, num_kv_heads=num_kv_heads)
    assert decode_length(config, [], num_drafts) == expected
    assert decode_length(config, [Latent(8, "float32")], num_drafts) == 1


def test_what_does_not_go_together() -> None:
    with pytest.raises(ConfigError, match="pooling model"):
        resolve_drafts(settings_of(NGRAM), is_pooling=True)
    settings = settings_of(NGRAM)
    settings.model.logits_processors = ["a:B"]
    with pytest.raises(ConfigError, match="logits processors"):
        resolve_drafts(settings, is_pooling=False)
