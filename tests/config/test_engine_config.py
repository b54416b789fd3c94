"""Settings: checked by name, type and range, from flat keyword arguments."""

from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig, ServerSettings
from octavo.config.descriptions import field_descriptions
from octavo.config.engine_config import ENGINE_SECTIONS, convert_section
from octavo.errors import ConfigError


def test_flat_arguments_find_their_sections() -> None:
    config = EngineConfig.from_kwargs(
        model="m", max_num_seqs=4, block_size=8, load_format="dummy", device="cpu", seed=3
    )
    assert config.model.model == "m"
    assert config.model.seed == 3
    assert config.scheduler.max_num_seqs == 4
    assert config.cache.block_size == 8
    assert config.load.load_format == "dummy"
    assert config.device.device == "cpu"


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"There is no setting 'max_num_seq'\. Did you mean 'max_num_seqs'\?"):
        EngineConfig.from_kwargs(model="m", max_num_seq=4)
    with pytest.raises(ConfigError, match=r"There is no setting 'zzzzzz'\.$"):
        EngineConfig.from_kwargs(model="m", zzzzzz=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 0),
        ("max_model_len", "long"),
        ("max_model_len", 1.5),
        ("block_size", 0),
        ("block_size", 2048),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.1),
        ("kv_cache_memory_bytes", -1),
        ("num_gpu_blocks_override", 1),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", -3),
        ("scheduling_policy", "random"),
        ("enable_prefix_caching", "maybe"),
        ("tensor_parallel_size", 0),
        ("dtype", "int8"),
        ("load_format", "pickle"),
        ("device", "toaster"),
        ("max_logprobs", -2),
        ("num_threads", 0),
        ("log_level", "loud"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^Setting '{name}' is wrong, got .*: .*\.$"):
        EngineConfig.from_kwargs(model="m", **{name: value})


def test_a_model_is_required() -> None:
    with pytest.raises(ConfigError, match="model"):
        EngineConfig.from_kwargs()


def test_a_wrong_server_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'port'"):
        convert_section(ServerSettings, {"port": 70_000})


@pytest.mark.parametrize("section", [*ENGINE_SECTIONS.values(), ServerSettings])
def test_every_setting_is_described_for_flags_and_docs(section: type[msgspec.Struct]) -> None:
    descriptions = field_descriptions(section)
    assert list(descriptions) == list(section.__struct_fields__)
    assert all(text.endswith(".") for text in descriptions.values())


def test_no_setting_stands_in_two_sections() -> None:
    names = [name for section in [*ENGINE_SECTIONS.values(), ServerSettings] for name in section.__struct_fields__]
    assert len(names) == len(set(names))


def test_defaults_are_not_shared() -> None:
    ServerSettings().allowed_origins.append("https://example.org")
    assert ServerSettings().allowed_origins == []
