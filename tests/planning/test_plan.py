"""Plans: defaults, refusals in words, and agreement with the scheduler that obeys them."""

import logging
import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_config

from octavo.bench.shapes import SHAPES
from octavo.cache import CacheManager
from octavo.config import EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.execution.graphs import decode_sizes
from octavo.hub.config_file import parse_config
from octavo.hub.families.mamba2 import Mamba2Fields
from octavo.hub.model_config import ModelConfig
from octavo.kernels.attention import EXPANDED_BYTES
from octavo.planning import make_plan
from octavo.platforms import GPU_MODELS, CpuPlatform, DeviceMemory, ImaginedGpu, Platform
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
        assert reason(plan, "max_model_len") == "512: the model's context length"

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

    @pytest.mark.parametrize("platform", [FakePlatform(), ImaginedGpu(24 * GIB), ImaginedGpu(141 * GIB)])
    @pytest.mark.parametrize("settings", [{}, {"kv_cache_dtype": "fp8"}, {"deterministic": True}])
    def test_a_block_has_sixteen_tokens_whatever_the_kernels_would_like(
        self, settings: dict[str, Any], platform: Platform
    ) -> None:
        plan = plan_for(tiny_config(sliding=(0, 1), window=40), platform, **settings)
        assert plan.block_size == 16
        assert {group.block_size for group in plan.groups} == {16}

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


class TestStepLimits:
    def test_a_small_token_budget_lowers_the_batch(self) -> None:
        plan = plan_for(max_num_batched_tokens=64)
        assert (plan.max_num_seqs, plan.max_num_batched_tokens, plan.token_budget) == (64, 64, 64)
        assert reason(plan, "max_num_seqs").startswith("64: no more than max_num_batched_tokens")

    def test_a_small_scheduled_budget_lowers_the_batch_but_not_the_room(self) -> None:
        plan = plan_for(max_num_scheduled_tokens=32)
        assert (plan.max_num_seqs, plan.max_num_batched_tokens, plan.token_budget) == (32, 1024, 32)

    def test_the_scheduler_gets_all_the_room_unless_told_otherwise(self) -> None:
        assert plan_for(max_num_batched_tokens=512).token_budget == 512

    def test_a_scheduled_budget_alone_makes_room_for_itself(self) -> None:
        assert plan_for(max_num_scheduled_tokens=4096).max_num_batched_tokens == 4096

    def test_running_requests_wait_less_for_prompts_the_larger_the_model_is(self) -> None:
        """Unless throughput is the goal, or the user has said what a step may hold."""
        large = ImaginedGpu(141 * GIB)
        small, medium, big = (
            replace(tiny_config(num_layers=count), hidden_size=4096, intermediate_size=12_288) for count in (1, 36, 200)
        )
        assert plan_for(small, large).max_num_mixed_tokens is None
        limits = [plan_for(config, large).max_num_mixed_tokens for config in (medium, big)]
        assert limits[0] is not None and limits[1] is not None
        assert plan_for(medium, large).token_budget > limits[0] > limits[1] > plan_for(big, large).max_num_seqs
        for choice in ({"performance_mode": "throughput"}, {"max_num_batched_tokens": 16384}):
            assert plan_for(medium, large, **choice).max_num_mixed_tokens is None
        assert plan_for(medium, large, enable_chunked_prefill=False).max_num_mixed_tokens is None

    def test_experts_that_a_token_does_not_choose_make_nobody_wait(self) -> None:
        """Qwen3-30B-A3B has four times the parameters of Qwen3-8B, of which a token uses a tenth."""
        large = ImaginedGpu(141 * GIB)
        dense, routed = (plan_for(parse_config(SHAPES[name]), large) for name in ("qwen3-8b", "qwen3-30b-a3b"))
        assert dense.max_num_mixed_tokens is not None and routed.max_num_mixed_tokens is not None
        assert dense.max_num_mixed_tokens < routed.max_num_mixed_tokens < routed.token_budget

    @pytest.mark.parametrize("platform", [FakePlatform(), ImaginedGpu(24 * GIB), ImaginedGpu(141 * GIB)])
    def test_blocks_hold_16_tokens_on_every_platform(self, platform: Platform) -> None:
        assert plan_for(platform=platform).block_size == 16


class TestPerformanceMode:
    def test_throughput_doubles_defaults(self) -> None:
        plan = plan_for(performance_mode="throughput", platform=ImaginedGpu(24 * GIB))
        assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (512, 16384)
        assert "doubled for throughput" in reason(plan, "max_num_seqs")

    def test_throughput_leaves_what_is_set(self) -> None:
        plan = plan_for(performance_mode="throughput", max_num_seqs=3, platform=ImaginedGpu(24 * GIB))
        assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (3, 16384)
        plan = plan_for(performance_mode="throughput", max_num_batched_tokens=4096)
        assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (512, 4096)

    def test_interactivity_captures_every_small_batch(self) -> None:
        plan = plan_for(performance_mode="interactivity", platform=ImaginedGpu(24 * GIB))
        sizes = decode_sizes(plan.max_num_seqs, plan.num_exact_graphs)
        assert set(range(1, 33)) <= set(sizes)
        assert [size for size in sizes if size > 32] == [size for size in decode_sizes(256) if size > 32]
        balanced = plan_for(platform=ImaginedGpu(24 * GIB))
        assert decode_sizes(balanced.max_num_seqs, balanced.num_exact_graphs) == decode_sizes(256)
        assert plan.memory_of("graphs") > balanced.memory_of("graphs")

    def test_small_batches_get_no_larger_graphs(self) -> None:
        assert decode_sizes(3, 32) == [1, 2, 3]

    def test_a_cpu_has_no_graphs(self) -> None:
        for mode in ("balanced", "interactivity", "throughput"):
            plan = plan_for(performance_mode=mode)
            assert (plan.num_exact_graphs, plan.memory_of("graphs")) == (0, 0)
        assert plan_for(platform=ImaginedGpu(24 * GIB)).memory_of("graphs") > 0


class TestPlatformHooks:
    def test_defaults_come_first_and_checks_see_them(self) -> None:
        class Odd(FakePlatform):
            def apply_config_platform_defaults(self, settings: EngineConfig) -> EngineConfig:
                cache = msgspec.structs.replace(settings.cache, block_size=settings.cache.block_size or 64)
                return msgspec.structs.replace(settings, cache=cache)

            def check_and_update_config(self, settings: EngineConfig) -> EngineConfig:
                if settings.cache.block_size != 64:
                    raise ConfigError("This platform has blocks of 64 tokens only.")
                return settings

        assert plan_for(platform=Odd()).block_size == 64
        with pytest.raises(ConfigError, match="64 tokens only"):
            plan_for(platform=Odd(), block_size=16)

    @pytest.mark.parametrize(("machine", "is_on"), [("x86_64", True), ("ppc64le", True), ("riscv64", False)])
    def test_prefix_caching_and_chunks_are_off_on_risc_v_only(
        self, machine: str, is_on: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("octavo.platforms.cpu.machine", lambda: machine)
        settings = EngineConfig.from_kwargs(model="test")
        with caplog.at_level(logging.INFO):
            plan = make_plan(settings, tiny_config(), CpuPlatform())
        assert (plan.enable_prefix_caching, plan.enable_chunked_prefill) == (is_on, is_on)
        assert caplog.text.count("off by default on RISC-V") == (0 if is_on else 1)
        caplog.clear()
        settings = EngineConfig.from_kwargs(model="test", enable_prefix_caching=True, enable_chunked_prefill=True)
        plan = make_plan(settings, tiny_config(), CpuPlatform())
        assert plan.enable_prefix_caching and plan.enable_chunked_prefill
        assert "RISC-V" not in caplog.text


class TestLengths:
    def test_a_length_beyond_the_models_may_be_allowed(self) -> None:
        assert plan_for(max_model_len=600, allow_long_max_model_len=True).max_model_len == 600

    def test_a_cache_size_for_cpus_alone(self) -> None:
        assert plan_for(cpu_cache_memory_bytes=1 << 20).num_blocks == plan_for(kv_cache_memory_bytes=1 << 20).num_blocks
        both = plan_for(cpu_cache_memory_bytes=1 << 20, kv_cache_memory_bytes=1 << 21)
        assert both.num_blocks == plan_for(kv_cache_memory_bytes=1 << 21).num_blocks
        gpu = ImaginedGpu(24 * GIB)
        assert plan_for(cpu_cache_memory_bytes=1 << 20, platform=gpu) == plan_for(platform=gpu)


class TestRefusals:
    @pytest.mark.parametrize(
        ("platform", "backend", "others"),
        [
            (FakePlatform(), "triton", "a CPU made up for a test does not have; set auto or torch"),
            (ImaginedGpu(80 * GIB), "torch", "set auto or triton"),
            (ImaginedGpu(80 * GIB), "deep_gemm", "set auto or triton"),
        ],
    )
    def test_kernels_for_experts_that_the_device_does_not_have(
        self, platform: Platform, backend: str, others: str
    ) -> None:
        with pytest.raises(ConfigError, match=f"moe_backend is '{backend}', which .*{others}"):
            plan_for(platform=platform, moe_backend=backend)

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
        one, two = plan_for(), plan_for(tensor_parallel_size=2)
        assert one.memory_of("weights") / 2 <= two.memory_of("weights") < 0.6 * one.memory_of("weights")
        assert _block_bytes(two) == _block_bytes(one) / 2
        with pytest.raises(ConfigError, match=r"tensor_parallel_size is 5.* heads cannot be dealt out evenly"):
            plan_for(tensor_parallel_size=5)
        with pytest.raises(ConfigError, match="'uni'"):
            plan_for(tensor_parallel_size=2, distributed_executor_backend="uni")

    def test_a_budget_below_the_number_of_requests(self) -> None:
        with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(4\) is below max_num_seqs \(8\)"):
            plan_for(max_num_batched_tokens=4, max_num_seqs=8)

    def test_a_budget_for_the_scheduler_that_a_step_has_no_room_for(self) -> None:
        with pytest.raises(
            ConfigError, match=r"max_num_scheduled_tokens \(65\) is above max_num_batched_tokens \(64\)"
        ):
            plan_for(max_num_batched_tokens=64, max_num_scheduled_tokens=65)
        with pytest.raises(ConfigError, match=r"max_num_scheduled_tokens \(4\) is below max_num_seqs \(8\)"):
            plan_for(max_num_scheduled_tokens=4, max_num_seqs=8)

    def test_a_model_that_needs_its_own_code(self) -> None:
        config = replace(tiny_config("OddForCausalLM"), raw={"auto_map": {"AutoModel": "modeling_odd.Odd"}})
        with pytest.raises(UnsupportedModelError, match="Octavo never runs such code"):
            plan_for(config, trust_remote_code=True)

    def test_running_ahead_of_custom_processors(self) -> None:
        with pytest.raises(ConfigError, match="they need every token"):
            plan_for(async_scheduling=True, logits_processors=["package:Class"])

    def test_an_unknown_architecture(self) -> None:
        with pytest.raises(UnsupportedModelError, match="Near it are: LlamaForCausalLM"):
            plan_for(tiny_config("LlamaForCausalML"))


def test_a_length_not_set_shrinks_to_the_cache_and_says_so() -> None:
    plan = plan_for(num_gpu_blocks_override=10)
    assert plan.max_model_len == 144
    assert reason(plan, "max_model_len") == "144: the longest that fits the cache; the model's context length is 512"


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


def _linear_parameters(config: ModelConfig) -> int:
    """Values and outputs of the linear layers but the head."""
    hidden, queries, keys = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    return config.num_layers * hidden * (2 * queries + 2 * keys + 3 * config.intermediate_size)


def test_float8_weights_are_counted_as_they_are_stored() -> None:
    config = tiny_config(dtype="bfloat16")
    gpu = ImaginedGpu(8 * GIB)
    plain, float8 = plan_for(config, gpu), plan_for(config, gpu, quantization="fp8")
    num_outputs = config.num_layers * (4 * 16 + 2 * 2 * 16 + 64 + 2 * 128 + 64)
    saved = _linear_parameters(config) - 4 * num_outputs
    assert plain.memory_of("weights") - float8.memory_of("weights") == saved
    (part,) = [part for part in float8.memory if part.name == "weights"]
    assert "linear layers in float8" in part.reason
    (decision,) = [decision for decision in float8.decisions if decision.name == "quantization"]
    assert decision.reason == "as set"
    assert not [decision for decision in plain.decisions if decision.name == "quantization"]


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_where_float8_is_not_multiplied_weights_take_the_compute_type(is_deterministic: bool) -> None:
    platform = ImaginedGpu(8 * GIB) if is_deterministic else FakePlatform()
    config = replace(tiny_config(dtype="bfloat16"), quantization={"quant_method": "fp8"})
    plan = plan_for(config, platform, deterministic=is_deterministic)
    plain = plan_for(tiny_config(dtype="bfloat16"), platform)
    assert plan.memory_of("weights") > plain.memory_of("weights")
    (decision,) = [decision for decision in plan.decisions if decision.name == "quantization"]
    assert decision.reason == "as the checkpoint is; values are kept and multiplied in the compute type"


def test_the_speed_limit_counts_float8_weights() -> None:
    config = tiny_config(dtype="bfloat16", num_layers=8)
    engine = EngineConfig.from_kwargs(model="test", quantization="fp8")
    float8 = make_plan(engine, config, ImaginedGpu(8 * GIB), 1e9)
    plain = make_plan(EngineConfig.from_kwargs(model="test"), config, ImaginedGpu(8 * GIB), 1e9)
    assert float8.decode_limit == pytest.approx(1e9 / float8.memory_of("weights"))
    assert plain.decode_limit == pytest.approx(1e9 / plain.memory_of("weights"))


def _block_bytes(plan: Plan) -> float:
    return plan.memory_of("key/value cache") / plan.num_blocks


class TestRecurrentStates:
    config = replace(
        tiny_config(),
        architecture="Mamba2ForCausalLM",
        num_kv_heads=4,
        own=Mamba2Fields(2, 8, 4, (0.0, math.inf), use_bias=False, use_conv_bias=True),
    )

    def test_they_are_kept_at_intervals_of_whole_blocks(self) -> None:
        plan = plan_for(self.config, mamba_block_size=40)
        assert [group.block_size for group in plan.groups] == [48]
        assert reason(plan, "mamba_block_size") == "40: as set"
        assert reason(plan, "cache groups") == "1: 1 of recurrent states"
        (usual,) = plan_for(self.config).groups
        assert plan_for(self.config, mamba_block_size=usual.block_size).groups == (usual,)

    def test_without_prefix_caching_each_request_keeps_one(self) -> None:
        plan = plan_for(self.config, enable_prefix_caching=False)
        assert plan.max_blocks_per_seq == 1

    def test_drafts_make_room_for_a_state_each(self) -> None:
        drafts = {"method": "ngram", "num_speculative_tokens": 2}
        assert plan_for(self.config, speculative_config=drafts).block_bytes == 3 * plan_for(self.config).block_bytes

    def test_the_interval_means_nothing_to_other_models(self) -> None:
        assert reason(plan_for(mamba_block_size=40), "mamba_block_size") == "40: no layer has a recurrent state"

    def test_kernels_of_a_gpu_do_not_promise_equal_bits(self) -> None:
        with pytest.raises(ConfigError, match="recurrent states"):
            plan_for(self.config, platform=ImaginedGpu(8 * GIB), deterministic=True)
        assert plan_for(self.config, deterministic=True).groups


class TestQuantizedCache:
    """Keys and values of 8 bits."""

    def test_more_blocks_fit(self) -> None:
        plain, given = (plan_for(kv_cache_memory_bytes=8 << 20, kv_cache_dtype=name) for name in ("auto", "fp8"))
        assert 1.5 < given.cache_tokens / plain.cache_tokens < 2
        assert given.memory_of("key/value cache") == given.num_blocks * given.block_bytes
        found = reason(given, "kv_cache_dtype")
        assert found.startswith("float8_e4m3fn, a scale per token and head: as set; PyTorch attends to them")

    @pytest.mark.parametrize(
        ("gpu", "settings", "num_bytes"),
        [
            ("h100", {"kv_cache_dtype": "fp8"}, EXPANDED_BYTES),
            ("h200", {"kv_cache_dtype": "int8_per_token_head"}, EXPANDED_BYTES),
            ("h100", {}, 0),
            ("h100", {"kv_cache_dtype": "fp8", "dtype": "float32"}, 0),
            ("l40s", {"kv_cache_dtype": "fp8"}, 0),
        ],
    )
    def test_prefill_on_hopper_has_a_buffer_for_a_layer(
        self, gpu: str, settings: dict[str, Any], num_bytes: int
    ) -> None:
        model = GPU_MODELS[gpu]
        plan = plan_for(platform=ImaginedGpu(model.num_bytes, model), **settings)
        assert plan.memory_of("expanded keys") == num_bytes

    def test_skipped_layers_take_what_they_need_and_no_more(self) -> None:
        config = tiny_config(num_layers=12)
        options = {"kv_cache_memory_bytes": 8 << 20, "kv_cache_dtype": "int8_per_token_head"}
        whole = plan_for(config, **options).cache_tokens
        part = plan_for(config, **options, kv_cache_dtype_skip_layers=["0", "11"])
        assert part.cache_tokens > 0.75 * whole
        assert "2 of 12 caches are not quantised" in reason(part, "kv_cache_dtype")

    @pytest.mark.parametrize(
        ("config", "settings", "sentence"),
        [
            (tiny_config(), {"kv_cache_dtype_skip_layers": ["0", "1", "2"]}, "caches are with full attention"),
            (TestRecurrentStates.config, {}, "its layers' caches are of recurrent states"),
        ],
    )
    def test_models_without_such_keys_are_rejected(
        self, config: ModelConfig, settings: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(ConfigError, match=sentence):
            plan_for(config, kv_cache_dtype="fp8", **settings)
