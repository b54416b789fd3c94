"""Plans: defaults, refusals in words, and agreement with the scheduler that obeys them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_config

from octavo.cache import CacheManager
from octavo.config import EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub.model_config import ModelConfig
from octavo.planning import make_plan
from octavo.platforms import DeviceMemory, ImaginedGpu, Platform
from octavo.records import Plan

GIB = 1 << 30


class FakePlatform(Platform):
    """A CPU of any size."""

    name = "cpu"
    runs_ahead = False

    def __init__(
        self, available: int = 8 * GIB, fast: tuple[torch.dtype, ...] = (torch.bfloat16,), total: int = 16 * GIB
    ) -> None:
        self.available = available
        self.fast = fast
        self.total = total

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> DeviceMemory:
        return DeviceMemory(self.total, self.available)

    def fast_dtypes(self) -> tuple[torch.dtype, ...]:
        return self.fast

    def prepare(self, num_threads: int | None) -> None: ...

    def read_bandwidth(self) -> float:
        return 1e9

    def describe(self) -> str:
        return "a CPU made up for a test"


def plan_for(config: ModelConfig | None = None, platform: Platform | None = None, **settings: Any) -> Plan:
    engine = EngineConfig.from_kwargs(model="test", **settings)
    return make_plan(engine, config or tiny_config(), platform or FakePlatform())


def reason(plan: Plan, name: str) -> str:
    (decision,) = [decision for decision in plan.decisions if decision.name == name]
    return f"{decision.value}: {decision.reason}"


class TestDefaults:
    def test_what_the_model_was_made_for(self) -> None:
        plan = plan_for()
        assert plan.max_model_len == 512
        assert reason(plan, "max_model_len") == "512: what the model was made for"

    def test_every_setting_as_given(self) -> None:
        plan = plan_for(
            block_size=8,
            max_num_seqs=3,
            max_num_batched_tokens=64,
            max_model_len=100,
            scheduling_policy="priority",
            enable_prefix_caching=False,
            enable_chunked_prefill=False,
            num_gpu_blocks_override=50,
        )
        assert (plan.block_size, plan.max_num_seqs, plan.max_num_batched_tokens) == (8, 3, 64)
        assert (plan.max_model_len, plan.num_blocks, plan.scheduling_policy) == (100, 50, "priority")
        assert not plan.enable_prefix_caching
        assert not plan.enable_chunked_prefill
        assert reason(plan, "block_size") == "8: as set"

    def test_every_decision_has_a_reason(self) -> None:
        assert all(decision.reason for decision in plan_for().decisions)

    @pytest.mark.parametrize(
        ("own", "wanted", "expected"),
        [
            ("bfloat16", "auto", "bfloat16"),
            ("float32", "auto", "bfloat16"),
            ("float16", "auto", "bfloat16"),
            ("float32", "float", "float32"),
            ("bfloat16", "half", "float16"),
        ],
    )
    def test_the_type_to_compute_in(self, own: str, wanted: str, expected: str) -> None:
        assert plan_for(tiny_config(dtype=own), dtype=wanted).dtype == expected

    def test_the_cache_is_no_larger_than_all_requests_together(self) -> None:
        plan = plan_for(max_num_seqs=2, max_model_len=64, block_size=16)
        assert plan.num_blocks == 1 + 2 * 4

    def test_a_cache_of_so_many_bytes_takes_so_many_bytes(self) -> None:
        plan = plan_for(kv_cache_memory_bytes=1 << 20, max_model_len=64)
        (cache,) = [part.num_bytes for part in plan.memory if part.name == "key/value cache"]
        bytes_per_block = cache // plan.num_blocks
        assert (plan.num_blocks - 1) * bytes_per_block <= 1 << 20 < plan.num_blocks * bytes_per_block + bytes_per_block

    @pytest.mark.parametrize(("gigabytes", "seqs", "tokens"), [(24, 256, 8192), (80, 1024, 16384)])
    def test_a_large_device_gets_more_to_do(self, gigabytes: int, seqs: int, tokens: int) -> None:
        plan = plan_for(platform=ImaginedGpu(gigabytes * GIB))
        assert (plan.max_num_seqs, plan.max_num_batched_tokens, plan.num_steps_ahead) == (seqs, tokens, 1)

    def test_a_large_computer_is_no_large_device(self) -> None:
        plan = plan_for(platform=FakePlatform(total=512 * GIB))
        assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (256, 1024)


class TestRefusals:
    def test_a_length_that_the_model_was_not_made_for(self) -> None:
        with pytest.raises(ConfigError, match="max_model_len is 513, but the model was made for at most 512"):
            plan_for(max_model_len=513)

    def test_a_length_that_the_cache_does_not_hold(self) -> None:
        with pytest.raises(ConfigError, match="512 tokens does not fit the cache, which holds 144 tokens"):
            plan_for(max_model_len=512, num_gpu_blocks_override=10)

    def test_no_memory_for_a_cache(self) -> None:
        with pytest.raises(ConfigError, match="No memory is left for the cache"):
            plan_for(platform=FakePlatform(available=1000))

    @pytest.mark.parametrize("max_model_len", [None, 64])
    def test_a_cache_smaller_than_a_block(self, max_model_len: int | None) -> None:
        with pytest.raises(ConfigError, match="does not hold one block"):
            plan_for(kv_cache_memory_bytes=1, max_model_len=max_model_len)

    def test_several_devices(self) -> None:
        with pytest.raises(ConfigError, match="tensor_parallel_size must be 1"):
            plan_for(tensor_parallel_size=2)

    def test_a_budget_below_the_number_of_requests(self) -> None:
        with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(4\) is below max_num_seqs \(8\)"):
            plan_for(max_num_batched_tokens=4, max_num_seqs=8)

    def test_code_from_a_models_folder(self) -> None:
        with pytest.raises(ConfigError, match="runs no code"):
            plan_for(trust_remote_code=True)

    def test_running_ahead_of_custom_processors(self) -> None:
        with pytest.raises(ConfigError, match="they need every token"):
            plan_for(async_scheduling=True, logits_processors=["package:Class"])

    def test_an_unknown_architecture(self) -> None:
        with pytest.raises(UnsupportedModelError, match="Near it are: LlamaForCausalLM"):
            plan_for(tiny_config("LlamaForCausalML"))


def test_a_length_not_set_shrinks_to_the_cache_and_says_so() -> None:
    plan = plan_for(num_gpu_blocks_override=10)
    assert plan.max_model_len == 144
    assert reason(plan, "max_model_len") == "144: what the cache holds; the model was made for 512"


@settings(max_examples=150)
@given(
    num_layers=st.integers(1, 6),
    data=st.data(),
    window=st.integers(1, 80),
    num_blocks=st.integers(2, 120),
    block_size=st.integers(1, 16),
    budget=st.integers(1, 64),
)
def test_what_the_plan_promises_the_scheduler_accepts(
    num_layers: int, data: st.DataObject, window: int, num_blocks: int, block_size: int, budget: int
) -> None:
    sliding = tuple(data.draw(st.sets(st.integers(0, num_layers - 1))))
    config = tiny_config(num_layers=num_layers, sliding=sliding, window=window if sliding else None, max_positions=100)
    try:
        plan = plan_for(
            config,
            num_gpu_blocks_override=num_blocks,
            block_size=block_size,
            max_num_batched_tokens=budget,
            max_num_seqs=1,
        )
    except ConfigError as error:
        assert "does not hold one block" in str(error)
        return
    assert 1 <= plan.max_model_len <= 100
    chunk = min(plan.max_num_batched_tokens, plan.max_model_len)
    assert CacheManager(plan.num_blocks, plan.block_size, plan.groups, chunk).fits(plan.max_model_len)
