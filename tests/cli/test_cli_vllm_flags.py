"""vLLM's flags on the command line and in settings files."""

import logging
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.flags import ALL_SECTIONS, add_setting_flags, engine_config, given_settings, server_settings
from octavo.cli.parser import Parser, join_fields
from octavo.config.engine_config import ENGINE_SECTIONS
from octavo.config.vllm_arguments import vllm_arguments
from octavo.errors import ConfigError

QUANTIZATIONS = "awq, bitsandbytes, compressed-tensors, fp8, gguf, gptq, int4, int8"


def parse(*arguments: str, sections: Any = ALL_SECTIONS) -> dict[str, Any]:
    parser = Parser("octavo serve", "Serve.", "MODEL")
    add_setting_flags(parser, sections)
    return given_settings(parser.parse(arguments), sections)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--swap-space", "4"],
        ["--disable-log-requests"],
        ["--data-parallel-size", "1"],
        ["-dp", "1"],
        ["-pp", "1"],
        ["-O3"],
        ["-O", "2"],
        ["-O=1"],
        ["--optimization-level", "O2"],
        ["--max-seq-len-to-capture", "8k"],
        ["--compilation-config", '{"cudagraph_capture_sizes": [1, 2]}'],
        ["--compilation-config", "3"],
        ["-cc.cudagraph_capture_sizes+", "1,2"],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--limit-mm-per-prompt", '{"image": 2}'],
        ["--limit-mm-per-prompt.image", "2"],
        ["--enable-server-load-tracking"],
        ["--no-enable-lora"],
        ["--mamba_cache_dtype=auto"],
        ["--no-tokens-only"],
    ],
)
def test_flags_without_effect_are_accepted_with_one_warning(
    arguments: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse("m", *arguments) == {"model": "m"}
    (record,) = caplog.records
    assert "without effect" in record.getMessage()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--structured-outputs-config.backend", "xgrammar"], {"structured_outputs_backend": "xgrammar"}),
        (["--structured_outputs_config.backend=guidance"], {"structured_outputs_backend": "guidance"}),
        (
            ["--structured-outputs-config", '{"backend": "guidance", "reasoning_parser": "qwen3"}'],
            {"structured_outputs_backend": "guidance", "reasoning_parser": "qwen3"},
        ),
        (["-O0"], {"enforce_eager": True}),
        (["--task", "generate"], {"runner": "generate"}),
        (["--return-tokens-as-token-ids"], {"return_tokens_as_token_ids": True}),
        (["--scheduling-policy", "priority"], {"scheduling_policy": "priority"}),
        (["--no-enable-log-requests"], {"enable_log_requests": False}),
        (["--max-num-scheduled-tokens", "1k"], {"max_num_scheduled_tokens": 1000}),
        (["--performance-mode", "throughput"], {"performance_mode": "throughput"}),
        (["--enable-force-include-usage"], {"enable_force_include_usage": True}),
        (["--enable-prompt-tokens-details"], {"enable_prompt_tokens_details": True}),
        (["--trust-remote-code"], {"trust_remote_code": True}),
        (
            ["--hf-overrides.rope_scaling.factor", "4.0", "--hf-overrides.rope_scaling.rope_type=yarn"],
            {"hf_overrides": {"rope_scaling": {"factor": 4.0, "rope_type": "yarn"}}},
        ),
        (
            ["--hf-overrides", '{"a": 8k, "b": "8k"}', "--hf-overrides.c", "2K", "--hf-overrides.d+", "x,1"],
            {"hf_overrides": {"a": 8000, "b": "8k", "c": 2048, "d": ["x", 1]}},
        ),
    ],
)
def test_flags_with_a_twin_reach_it(arguments: list[str], expected: dict[str, Any]) -> None:
    assert parse("m", *arguments) == {"model": "m", **expected}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kv-cache-dtype", "fp8_inc"], "int8_per_token_head, not 'fp8_inc'; fp8_inc is for Gaudi processors"),
        (
            ["--quantization", "quip"],
            "moe_wna16, mxfp4, mxfp8, quark, torchao, not 'quip'",
        ),
        (
            ["-q", "quip"],
            "moe_wna16, mxfp4, mxfp8, quark, torchao, not 'quip'",
        ),
        (["--data-parallel-size", "2"], "Start several servers"),
        (["--pipeline-parallel-size", "two"], "takes a whole number"),
        (["--lora-modules", "a=b"], "needs LoRA adapters"),
        (["--diffusion-config", '{"steps": 4}'], "needs diffusion models"),
        (["--diffusion-config.steps", "4"], "needs diffusion models"),
        (["--hf-overrides.", "1"], "names no field"),
        (["--hf-overrides.a"], "--hf-overrides.a takes a value"),
        (["--port.a", "1"], "--port.a"),
    ],
)
def test_flags_that_would_change_results_are_rejected(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse("m", *arguments)
    assert sentence in str(error.value)


def test_python_and_the_command_line_say_the_same() -> None:
    with pytest.raises(ConfigError) as of_flag:
        parse("m", "--mamba-cache-dtype", "float16")
    with pytest.raises(ConfigError) as of_argument:
        from octavo.config import EngineConfig

        EngineConfig.from_kwargs(model="m", mamba_cache_dtype="float16")
    assert str(of_flag.value) == str(of_argument.value)


def test_settings_files_take_them_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: m\nswap-space: 4\nstructured-outputs-config:\n  backend: guidance\ndata_parallel_size: 1\n")
    with caplog.at_level(logging.WARNING):
        assert parse("--config", str(path)) == {"model": "m", "structured_outputs_backend": "guidance"}
    (record,) = caplog.records
    assert "swap_space=4, data_parallel_size=1" in record.getMessage()
    path.write_text("model: m\nmamba-cache-dtype: float16\n")
    with pytest.raises(ConfigError, match="models with recurrent state"):
        parse("--config", str(path))


def test_a_servers_flags_are_not_those_of_a_plan() -> None:
    with pytest.raises(ConfigError, match="a flag of vLLM that octavo serve does not have"):
        parse("m", "--log-error-stack", sections=ENGINE_SECTIONS)
    with pytest.raises(ConfigError, match="is a flag of octavo serve"):
        parse("m", "--port", "80", sections=ENGINE_SECTIONS)


def test_flags_without_effect_are_not_in_the_help() -> None:
    parser = Parser("octavo serve", "Serve.", "MODEL")
    add_setting_flags(parser, ALL_SECTIONS)
    parser.parse(["m"])
    text = parser.format_help()
    assert "--max-num-seqs" in text and "--swap-space" not in text
    assert "Did you mean" not in parser.explain_unknown("--swap-spac")


def test_every_flag_of_vllm_may_stand_beside_octavos() -> None:
    parser = Parser("octavo serve", "Serve.", "MODEL")
    add_setting_flags(parser, ALL_SECTIONS)
    parser.parse(["m"])
    assert {argument.options[0] for argument in vllm_arguments().values()} <= set(parser._option_string_actions)


def test_only_objects_have_fields() -> None:
    assert join_fields(["--port", "8.5", "--a.b", "1", "--x=1.5"], {"--c"}) == [
        "--port",
        "8.5",
        "--a.b",
        "1",
        "--x=1.5",
    ]


def test_variables_reach_server_and_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    values = parse("m")
    assert server_settings(values).api_key is None
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    assert not server_settings(values).enable_admin_endpoints
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_API_KEY", "from environment")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    found = server_settings(values)
    assert found.enable_admin_endpoints and found.api_key == ["from environment"]
    assert server_settings(parse("m", "--api-key", "flag")).api_key == ["flag"]
    assert engine_config(values).device.deterministic
