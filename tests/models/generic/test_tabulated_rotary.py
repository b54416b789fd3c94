"""Rotary embeddings of the library that read tables."""

from typing import Any

import pytest
import torch
import transformers
from library_models import LLAMA, config_of
from torch import nn

from octavo.layers.build import Build
from octavo.models.generic.attention import ATTENTION
from octavo.models.generic.library import empty_model
from octavo.models.registry import build_model

LONG = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LOCAL = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": LONG}


@pytest.mark.parametrize(
    ("kind", "architecture", "changes", "layer_types"),
    [
        (*LLAMA, {"rope_parameters": LONG}, [None]),
        (
            transformers.Gemma3TextConfig,
            "Gemma3ForCausalLM",
            {"rope_parameters": LOCAL, "layer_types": list(LOCAL)},
            list(LOCAL),
        ),
    ],
)
def test_tables_have_what_the_embedding_computes(
    kind: Any, architecture: str, changes: dict[str, Any], layer_types: list[str | None]
) -> None:
    config = config_of(kind, architecture, **changes)
    model: Any = build_model(config, Build(), 64)
    library = _rotary(empty_model(config, ATTENTION, "cpu").base_model)
    positions, x = torch.tensor([[3, 63, 0, 17]]), torch.empty(0)
    for layer_type in layer_types:
        options = {} if layer_type is None else {"layer_type": layer_type}
        found = _rotary(model.model)(x, positions, **options)
        for table, expected in zip(found, library(x, positions, **options), strict=True):
            torch.testing.assert_close(table, expected, rtol=0, atol=0)
        cos, is_interleaved, (kernels_cos, kernels_sin) = model.calls._tables[-1]
        assert cos is found[0] and not is_interleaved
        torch.testing.assert_close(kernels_cos[:, 0], found[0][0], rtol=0, atol=0)
        first, second = found[1][0].chunk(2, -1)
        torch.testing.assert_close(kernels_sin[:, 0], torch.cat((-first, second), -1), rtol=0, atol=0)


def _rotary(base: nn.Module) -> nn.Module:
    return next(module for module in base.modules() if "rope_type" in vars(module))
