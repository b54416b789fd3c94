"""The cache after loading: as large as what the model really left."""

from dataclasses import replace
from typing import Any

import pytest
from tiny_models import tiny_config

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.planning import fit_cache, make_plan, resize_cache
from octavo.platforms import DeviceMemory, ImaginedGpu
from octavo.records import Plan

GIB = 1 << 30
MIB = 1 << 20


class Gpu(ImaginedGpu):
    """A GPU of 4 GiB on which this process holds as much as a test says."""

    def __init__(self) -> None:
        super().__init__(4 * GIB)
        self.used = self.context_bytes
        self.others = 0

    def memory(self) -> DeviceMemory:
        return DeviceMemory(4 * GIB, 4 * GIB - self.used - self.others)

    def used_by_process(self) -> int:
        return self.used


def planned(gpu: Gpu, **settings: Any) -> tuple[Plan, EngineConfig]:
    values: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "gpu_memory_utilization": 0.9}
    engine = EngineConfig.from_kwargs(model="test", **{**values, **settings})
    config = replace(tiny_config(num_layers=8, max_positions=1 << 20), num_kv_heads=4, head_dim=64)
    return make_plan(engine, config, gpu), engine


def block_bytes(plan: Plan) -> int:
    return plan.memory_of("key/value cache") // plan.num_blocks


def test_parts_together_are_the_share() -> None:
    plan, _ = planned(Gpu())
    total = sum(part.num_bytes for part in plan.memory)
    assert int(0.9 * 4 * GIB) < total <= int(0.9 * 4 * GIB) + block_bytes(plan)
    assert all(part.reason for part in plan.memory)


@pytest.mark.parametrize("surplus", [-100 * MIB, 0, 100 * MIB])
def test_the_cache_takes_what_the_model_really_left(surplus: int) -> None:
    gpu = Gpu()
    plan, engine = planned(gpu)
    gpu.used += plan.memory_of("weights") + plan.memory_of("rotary tables") + surplus
    fitted = fit_cache(plan, engine, gpu.used_by_process(), gpu.memory())
    fewer = plan.num_blocks - fitted.num_blocks
    assert abs(fewer * block_bytes(plan) - surplus) <= block_bytes(plan)
    assert fitted.cache_tokens == (fitted.num_blocks - 1) * plan.block_size
    total = sum(part.num_bytes for part in fitted.memory)
    assert int(0.9 * 4 * GIB) < total <= int(0.9 * 4 * GIB) + block_bytes(plan)


def test_a_length_that_was_not_set_follows_the_cache_and_one_that_was_set_is_held() -> None:
    gpu = Gpu()
    plan, engine = planned(gpu)
    assert plan.max_model_len == plan.cache_tokens < 1 << 20
    gpu.used += plan.memory_of("weights") + plan.memory_of("rotary tables") + 100 * MIB
    assert fit_cache(plan, engine, gpu.used_by_process(), gpu.memory()).max_model_len < plan.max_model_len
    gpu.used = gpu.context_bytes
    plan, engine = planned(gpu, max_model_len=plan.max_model_len)
    gpu.used += plan.memory_of("weights") + plan.memory_of("rotary tables") + GIB
    with pytest.raises(ConfigError, match="does not fit the cache"):
        fit_cache(plan, engine, gpu.used_by_process(), gpu.memory())


def test_memory_that_is_taken_later_need_not_be_free_now() -> None:
    gpu = Gpu()
    plan, engine = planned(gpu)
    config = replace(tiny_config(num_layers=8, max_positions=1 << 20), num_kv_heads=4, head_dim=64)
    gpu.others = 3 * GIB
    with pytest.raises(ConfigError, match="other processes"):
        make_plan(engine, config, gpu)
    later = make_plan(engine, config, gpu, is_for_later=True)
    assert later == plan
    half = resize_cache(later, engine, plan.num_blocks // 2)
    assert half.num_blocks == plan.num_blocks // 2
    assert half.max_model_len == half.cache_tokens == (half.num_blocks - 1) * plan.block_size
    assert block_bytes(half) == block_bytes(plan)
    assert resize_cache(half, engine, half.num_blocks) is half


def test_a_size_set_by_hand_stays() -> None:
    gpu = Gpu()
    for settings in ({"kv_cache_memory_bytes": GIB}, {"num_gpu_blocks_override": 100}):
        plan, engine = planned(gpu, **settings)
        gpu.used = gpu.context_bytes + GIB
        assert fit_cache(plan, engine, gpu.used_by_process(), gpu.memory()) is plan
        gpu.used = gpu.context_bytes


def test_a_size_set_by_hand_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"has 4\.00 GiB for this process"):
        planned(Gpu(), kv_cache_memory_bytes=4 * GIB)


def test_graphs_take_nothing_where_none_are_captured() -> None:
    with_graphs, without = (planned(Gpu(), enforce_eager=eager)[0] for eager in (False, True))
    assert with_graphs.memory_of("graphs") > without.memory_of("graphs") == 0
    assert without.num_blocks > with_graphs.num_blocks
