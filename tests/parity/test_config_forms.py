"""Checkpoints as most of them lie on the hub: their config.json was written by transformers 4."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparison import assert_logprobs
from tiny_checkpoints import Checkpoint

from octavo import LLM, SamplingParams

# What transformers 4 did not write, and by what Gemma's layers were known instead.
_NEW_KEYS = ("rope_parameters", "layer_types", "dtype", "transformers_version")
_PATTERNS = {"gemma3-linear-rope": 3, "gemma3-released-pattern": 6}

NAMES = ("llama3-rope", "mistral-window", "qwen2-window", "qwen2-yarn", "qwen3", *_PATTERNS)


def _as_transformers_4(name: str, config: dict[str, Any]) -> dict[str, Any]:
    old = {key: value for key, value in config.items() if key not in _NEW_KEYS}
    old |= {"torch_dtype": config["dtype"], "transformers_version": "4.51.0"}
    ropes = config["rope_parameters"]
    if "full_attention" in ropes:
        old["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
        ropes = ropes["full_attention"]
    old["rope_theta"] = ropes["rope_theta"]
    scaling = {key: value for key, value in ropes.items() if key != "rope_theta"}
    old["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    if name in _PATTERNS:
        old["sliding_window_pattern"] = _PATTERNS[name]
    return old


@pytest.mark.parametrize("name", NAMES)
def test_older_configurations_mean_the_same(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM], tmp_path: Path
) -> None:
    source = checkpoint(name)
    config = json.loads((source.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(_as_transformers_4(name, config)))
    shutil.copy(source.folder / "model.safetensors", tmp_path)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, logprobs=-1, detokenize=False)
    prompt = [(7 * index) % 200 for index in range(90)]
    (output,) = start(Checkpoint(source.model, tmp_path)).generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert_logprobs(source.model, output)
