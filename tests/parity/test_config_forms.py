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
_PATTERNS = {"cohere2": 4, "gemma3-linear-rope": 3, "gemma3-released-pattern": 6}
# What GPT-NeoX calls them.
_ROTARY = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}

NAMES = (
    "llama3-rope",
    "mistral-window",
    "qwen2-window",
    "qwen2-yarn",
    "qwen3",
    *_PATTERNS,
    "apertus",
    "cohere",
    "exaone4-window",
    "falcon-multi-query",
    "gemma2",
    "glm",
    "gpt-neox",
    "hunyuan-alpha-rope",
    "ministral3",
    "nemotron",
    "olmo3-yarn",
    "phi",
    "phi3-long-rope",
    "smollm3",
    "stablelm",
)


def _as_transformers_4(name: str, config: dict[str, Any]) -> dict[str, Any]:
    old = {key: value for key, value in config.items() if key not in _NEW_KEYS}
    old |= {"torch_dtype": config["dtype"], "transformers_version": "4.51.0"}
    ropes = config["rope_parameters"]
    if "full_attention" in ropes:
        if name in _PATTERNS:
            old["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
        ropes = ropes["full_attention"]
    old["rope_theta"] = ropes["rope_theta"]
    if "partial_rotary_factor" in ropes:
        old["partial_rotary_factor"] = ropes["partial_rotary_factor"]
    scaling = {key: value for key, value in ropes.items() if key not in ("rope_theta", "partial_rotary_factor")}
    old["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    if name in _PATTERNS:
        old["sliding_window_pattern"] = _PATTERNS[name]
    return {_ROTARY.get(key, key): value for key, value in old.items()} if name == "gpt-neox" else old


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
