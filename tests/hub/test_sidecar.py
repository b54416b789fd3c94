"""Configurations of quantised weights in files beside config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.hub import load_model_config, resolve

SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def _quantization(folder: Path, files: dict[str, str], overrides: dict[str, Any] | None = None, **own: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(SIZES | own))
    for name, text in files.items():
        (folder / name).write_text(text)
    return load_model_config(resolve(str(folder)), overrides).quantization


@pytest.mark.parametrize(
    ("name", "text", "method"),
    [
        ("quantize_config.json", '{"bits": 4}', "gptq"),
        ("quantize_config.json", '{"bits": 4, "quant_method": "awq"}', "awq"),
        ("quant_config.json", '{"w_bit": 4}', "awq"),
        ("quantization_config.json", '{"bits": 4, "group_size": 128}', "auto-round"),
        ("hf_quant_config.json", '{"producer": {"name": "modelopt"}, "quantization": {}}', "modelopt"),
    ],
)
def test_a_file_stands_in_for_the_key(name: str, text: str, method: str, tmp_path: Path) -> None:
    found = json.loads(text) | {"quant_method": method}
    assert _quantization(tmp_path, {name: text}) == found
    assert _quantization(tmp_path, {name: text}, quantization_config=None) == found


def test_what_config_json_says_comes_first(tmp_path: Path) -> None:
    files, own = {"quantize_config.json": '{"bits": 4}'}, {"quant_method": "fp8"}
    assert _quantization(tmp_path, files, quantization_config=own) == own
    assert _quantization(tmp_path, files, compression_config=own) == own
    assert _quantization(tmp_path, files, {"quantization_config": own}) == own


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"quantize_config.json": "[4]"}, r"quantize_config\.json does not hold a JSON object"),
        ({"quant_config.json": "{"}, r"quant_config\.json is not valid JSON"),
        ({"quantize_config.json": "{}", "quant_config.json": "{}"}, r"quantize_config\.json and quant_config\.json"),
    ],
)
def test_a_broken_file_is_never_passed_over(files: dict[str, str], named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        _quantization(tmp_path, files)
