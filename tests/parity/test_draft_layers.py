"""Layers that draft further tokens, which checkpoints have behind the last one, are no part of the model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import Checkpoint

from octavo import LLM, SamplingParams
from octavo.errors import WeightsError

PARAMS = SamplingParams(temperature=0, max_tokens=4, logprobs=1, detokenize=False)
Start = Callable[..., LLM]


@pytest.mark.parametrize("name", ["deepseek-v3", "glm4-moe"])
def test_layers_behind_the_last_are_ignored(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Start, tmp_path: Path
) -> None:
    source = checkpoint(name)
    folder = shutil.copytree(source.folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.3.eh_proj.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    expected = start(source).generate([{"prompt_token_ids": [5, 6, 7]}], PARAMS)
    found = start(Checkpoint(source.model, folder)).generate([{"prompt_token_ids": [5, 6, 7]}], PARAMS)
    assert found[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    save_file(tensors | {"model.layers.4.eh_proj.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"unexpected: model\.layers\.4\.eh_proj\.weight"):
        start(Checkpoint(source.model, folder))
