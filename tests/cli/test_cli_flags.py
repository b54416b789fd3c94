import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.flags import (
    ALL_SECTIONS,
    Flag,
    add_setting_flags,
    engine_config,
    flags_of,
    given_settings,
    server_settings,
)
from octavo.cli.parser import Parser
from octavo.config import EngineConfig, ServerSettings
from octavo.config.engine_config import ENGINE_SECTIONS
from octavo.config.kv_events import KVEventsConfig
from octavo.errors import ConfigError

ALL_FLAGS = [flag for settings in ALL_SECTIONS.values() for flag in flags_of(settings)]
EXAMPLES: dict[str, Any] = {
    "max_model_len": ("8k", 8000),
    "kv_cache_memory_bytes": ("4GiB", 4 << 30),
    "gpu_memory_utilization": ("0.5", 0.5),
    "max_logprobs": ("-1", -1),
    "reasoning_config": ('{"reasoning_end_str": "</think>"}', {"reasoning_end_str": "</think>"}),
    "kv_events_config": ('{"hwm": 3, "topic": "t"}', KVEventsConfig(hwm=3, topic="t")),
    "reasoning_effort_map": ('{"low": "high"}', {"low": "high"}),
}
EXAMPLES_BY_KIND: dict[str, Any] = {
    "int": ("5", 5),
    "float": ("0.25", 0.25),
    "str": ("text", "text"),
    "object": ('{"a": 1}', {"a": 1}),
    "list": ("one", ["one"]),
}


def parse(*arguments: str) -> dict[str, Any]:
    parser = Parser("octavo serve", "Serve.", "MODEL")
    add_setting_flags(parser, ALL_SECTIONS)
    return given_settings(parser.parse(arguments), ALL_SECTIONS)


def example(flag: Flag) -> tuple[list[str], Any]:
    if flag.kind == "bool":
        return [("--no-" + flag.option[2:]) if flag.default else flag.option], not flag.default
    if flag.kind == "choice":
        return [flag.option, flag.choices[-1]], flag.choices[-1]
    if flag.name == "max_request_bytes":
        return [flag.option, "1MiB"], 1 << 20
    text, value = EXAMPLES.get(flag.name, EXAMPLES_BY_KIND[flag.kind])
    return [flag.option, text], value


@pytest.mark.parametrize("flag", ALL_FLAGS, ids=lambda flag: flag.name)
def test_every_setting_has_a_flag_that_reaches_it(flag: Flag) -> None:
    arguments, value = example(flag)
    values = parse(*(["some-model"] if flag.name != "model" else []), *arguments)
    config, server = engine_config(values), server_settings(values)
    sections = {"server": server, **{name: getattr(config, name) for name in ENGINE_SECTIONS}}
    (section,) = [section for section in sections.values() if hasattr(section, flag.name)]
    assert getattr(section, flag.name) == value
    assert flag.description


def test_defaults_are_those_of_the_settings() -> None:
    values = parse("some-model")
    assert engine_config(values) == EngineConfig.from_kwargs(model="some-model")
    assert server_settings(values) == ServerSettings()


def test_spellings() -> None:
    assert parse("m", "--max_num_seqs=4") == parse("m", "--max-num-seqs", "4") == {"model": "m", "max_num_seqs": 4}
    assert parse("--model", "m") == parse("m") == parse("m", "--model", "m")
    assert parse("m", "-tp", "1") == {"model": "m", "tensor_parallel_size": 1}
    assert parse("m", "--no_enable_prefix_caching") == {"model": "m", "enable_prefix_caching": False}
    assert parse("m", "--hf-overrides", '{"a_b": "--c_d"}')["hf_overrides"] == {"a_b": "--c_d"}


def test_lists_are_several_values_repeated_flags_or_json() -> None:
    expected = ["a", "b", "c"]
    assert parse("m", "--served-model-name", "a", "b", "c")["served_model_name"] == expected
    assert parse("m", "--served-model-name", "a", "--served-model-name", "b", "c")["served_model_name"] == expected
    assert parse("m", "--allowed-origins", '["a", "b", "c"]')["allowed_origins"] == expected


def test_auto_leaves_a_setting_to_be_decided() -> None:
    assert parse("m", "--max-model-len", "auto")["max_model_len"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["m", "--max-num-seq", "4"], "Did you mean --max-num-seqs?"),
        (["m", "--seed-token", "x"], "a flag of vLLM"),
        (["m", "--diffusion-config", '{"steps": 4}'], "needs diffusion models"),
        (["m", "--enable-lora"], "needs LoRA adapters"),
        (["m", "--zzz"], "There is no flag --zzz"),
        (["m", "--max-num", "4"], "There is no flag --max-num"),
        (["m", "--port"], "--port: expected one argument"),
        (["m", "--port", "http"], "takes a whole number"),
        (["m", "--dtype", "bfloat"], "is one of"),
        (["m", "--hf-overrides", "{"], "takes JSON"),
        (["m", "n"], "'n'"),
        (["m", "--model", "n"], "Two models"),
        (["m", "--allowed-origins", "[1"], "JSON list"),
    ],
)
def test_wrong_flags_are_refused_with_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(*arguments)
    assert sentence in str(error.value)
    assert str(error.value).endswith((".", "?"))


def test_bounds_are_those_of_the_settings() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        engine_config(parse("m", "--max-num-seqs", "0"))
    with pytest.raises(ConfigError, match="port"):
        server_settings(parse("m", "--port", "65536"))
    with pytest.raises(ConfigError, match="Name a model"):
        engine_config(parse("--port", "80"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "model: from-file\nmax-model-len: 8k\nport: 9000\napi_key: [a, b]\nenforce-eager: true\n"),
        (
            "config.toml",
            'model = "from-file"\nmax-model-len = "8k"\nport = 9000\napi_key = ["a", "b"]\nenforce_eager = true\n',
        ),
        (
            "config.json",
            json.dumps(
                {
                    "model": "from-file",
                    "max-model-len": 8000,
                    "port": 9000,
                    "api_key": ["a", "b"],
                    "enforce-eager": True,
                }
            ),
        ),
    ],
)
def test_settings_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    values = parse("--config", str(path), "--port", "9001")
    assert values == {
        "model": "from-file",
        "max_model_len": 8000,
        "port": 9001,
        "api_key": ["a", "b"],
        "enforce_eager": True,
    }
    assert parse("given", "--config", str(path))["model"] == "given"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max-num-sequences: 4", "Did you mean max-num-seqs?"),
        ("port: [", "Cannot parse"),
        ("- port", "names with values"),
        ("port: http", "takes a whole number"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        parse("m", "--config", str(path))
    assert sentence in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        parse("m", "--config", str(tmp_path / "none.yaml"))
