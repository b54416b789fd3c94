"""vLLM's arguments: which are accepted, which become settings, which are rejected."""

import logging
import re
from dataclasses import dataclass
from typing import Any

import pytest

from octavo.config import EngineConfig, ServerSettings
from octavo.config.engine_config import ENGINE_SECTIONS
from octavo.config.vllm_arguments import translate, vllm_arguments
from octavo.config.vllm_table import SERVER_ONLY, SHORT_FLAGS
from octavo.errors import ConfigError

SETTINGS = {name for section in [*ENGINE_SECTIONS.values(), ServerSettings] for name in section.__struct_fields__}
TABLE = vllm_arguments()


def test_no_argument_is_a_setting_as_well() -> None:
    assert not SETTINGS & set(TABLE)


def test_names_in_other_tables_stand_in_the_first() -> None:
    assert set(SERVER_ONLY) <= set(TABLE)
    assert set(SHORT_FLAGS) <= set(TABLE)
    assert len(set(SHORT_FLAGS.values())) == len(SHORT_FLAGS)


def test_hints_name_settings_that_exist_only() -> None:
    for argument in TABLE.values():
        words = set(re.findall(r"(?<!\w)--?[a-z][a-z-]+|[a-z]+(?:_[a-z]+)+", f"{argument.needs} {argument.instead}"))
        named = {word.lstrip("-").replace("-", "_") for word in words}
        assert named <= SETTINGS | {"system_fingerprint"}, argument.name
        assert not argument.setting or argument.setting in SETTINGS
        for setting in re.findall(r"set ([a-z_]+)", argument.instead):
            assert setting in SETTINGS | {"the", "strict"}, argument.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("swap_space", 4),
        ("tokenizer_mode", "auto"),
        ("disable_custom_all_reduce", True),
        ("limit_mm_per_prompt", {"image": 2}),
        ("disable_log_requests", True),
        ("optimization_level", 3),
        ("optimization_level", "O2"),
        ("data_parallel_size", 1),
        ("pipeline_parallel_size", 1),
        ("max_seq_len_to_capture", 8192),
        ("compilation_config", {"cudagraph_capture_sizes": [1, 2]}),
        ("compilation_config", 3),
        ("use_v2_block_manager", True),
        ("calculate_kv_scales", True),
        ("enable_lora", False),
        ("max_lora_rank", 64),
        ("cpu_offload_gb", 0),
        ("task", "auto"),
        ("served_model_name", ["a"]),
    ],
)
def test_what_changes_nothing_is_accepted_with_a_warning(
    name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = EngineConfig.from_kwargs(model="m", **{name: value})
    assert config == EngineConfig.from_kwargs(model="m")
    (record,) = caplog.records
    assert name in record.getMessage()


def test_one_warning_names_them_all(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        EngineConfig.from_kwargs(model="m", swap_space=4, tokenizer_mode="auto", max_num_seqs=2)
    (record,) = caplog.records
    assert "swap_space=4, tokenizer_mode='auto'" in record.getMessage()
    assert "max_num_seqs" not in record.getMessage()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("kv_cache_dtype", "nvfp4", "int8_per_token_head; nvfp4 has 4 bits"),
        ("load_format", "pt", "runai_streamer; pt reads pickles"),
        ("mamba_cache_dtype", "float32", "needs models with recurrent state"),
        ("quantization", "quip", "it is one of fp8, int8, int4, compressed-tensors, gguf, gptq, awq, bitsandbytes"),
        ("quantization_config", {"weight": "int4"}, "Set quantization instead"),
        ("data_parallel_size", 2, "Start several servers behind a balancer instead."),
        ("pipeline_parallel_size", 2, "needs pipeline parallelism"),
        ("enable_lora", True, "needs LoRA adapters"),
        ("diffusion_config", {"steps": 4}, "needs diffusion models"),
        ("logprobs_mode", "processed_logits", "needs log-probabilities other than raw ones"),
        ("tokenizer_mode", "mistral", "needs another kind of tokenizer"),
        ("enable_dbo", True, "needs several devices"),
        ("task", "transcription", "task is one of auto, generate"),
        ("optimization_level", 4, "optimization_level is 0, 1, 2 or 3"),
        ("structured_outputs_config", {"enable_in_reasoning": True}, "structured_outputs_config.enable_in_reasoning"),
        ("structured_outputs_config", {"colour": 1}, "There is no structured_outputs_config.colour"),
        ("structured_outputs_config", 3, "takes an object"),
        ("response_role", "me", "octavo serve has it"),
    ],
)
def test_what_would_change_results_is_rejected(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_kwargs(model="m", **{name: value})
    assert name in str(error.value) and sentence in str(error.value)
    assert str(error.value).endswith(".")


def test_no_more_requests_can_run_than_a_step_holds() -> None:
    with pytest.raises(ConfigError, match=r"max_num_active_seqs \(9\) is above max_num_seqs \(8\)"):
        EngineConfig.from_kwargs(model="m", max_num_active_seqs=9, max_num_seqs=8)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_none_is_as_if_it_were_not_given(name: str) -> None:
    translation = translate({name: None}, has_server=True)
    assert not translation.settings and not translation.warning()


@dataclass
class StructuredOutputsConfig:
    """As vLLM's."""

    backend: str = "guidance"
    reasoning_parser: str = ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"task": "embed"}, {"runner": "pooling", "convert": "embed"}),
        ({"task": "generate"}, {"runner": "generate"}),
        ({"task": "score", "convert": "none"}, {"runner": "pooling", "convert": "none"}),
        ({"optimization_level": 0}, {"enforce_eager": True}),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, {"enforce_eager": True}),
        ({"compilation_config": 0}, {"enforce_eager": True}),
        ({"structured_outputs_config": {"backend": "xgrammar"}}, {"structured_outputs_backend": "xgrammar"}),
        ({"structured_outputs_config": StructuredOutputsConfig()}, {"structured_outputs_backend": "guidance"}),
        (
            {"structured_outputs_config": {"reasoning_parser": "qwen3"}, "reasoning_parser": "glm45"},
            {"reasoning_parser": "glm45"},
        ),
        ({"guided_decoding_backend": "guidance"}, {"structured_outputs_backend": "guidance"}),
        (
            {"structured_outputs_config": {"disable_any_whitespace": True}},
            {"structured_outputs_disable_any_whitespace": True},
        ),
        ({"max_num_queued_tokens": 5}, {"max_num_waiting_tokens": 5}),
        ({"max_num_active_seqs": 4}, {"max_num_seqs": 4}),
        ({"max_num_seqs": 8, "max_num_active_seqs": 4}, {"max_num_seqs": 4}),
        ({"tokens_only": True}, {"skip_tokenizer_init": True}),
        (
            {"rope_theta": 1e6, "hf_overrides": {"hidden_act": "silu"}},
            {"hf_overrides": {"rope_theta": 1e6, "hidden_act": "silu"}},
        ),
    ],
)
def test_what_has_a_twin_becomes_it(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert translate(given, has_server=True).settings == expected


def test_a_servers_arguments_are_not_the_librarys() -> None:
    with pytest.raises(ConfigError, match="There is no setting 'log_error_stack'"):
        EngineConfig.from_kwargs(model="m", log_error_stack=True)


def test_none_and_torch_types_are_understood() -> None:
    class BFloat16:
        def __repr__(self) -> str:
            return "torch.bfloat16"

    config = EngineConfig.from_kwargs(model="m", seed=None, dtype=BFloat16())
    assert (config.model.seed, config.model.dtype) == (0, "bfloat16")


def test_trusting_remote_code_is_accepted_and_said_to_run_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        EngineConfig.from_kwargs(model="m", trust_remote_code=True)
    (record,) = caplog.records
    assert "runs no code" in record.getMessage()
    caplog.clear()
    EngineConfig.from_kwargs(model="m", trust_remote_code=False)
    assert not caplog.records
