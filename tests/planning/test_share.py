"""A process's share of a device, divided; and refusals that say who is short of what."""

import pytest

from octavo.errors import ConfigError
from octavo.planning.share import check_room, left_for_cache
from octavo.platforms import DeviceMemory
from octavo.records import MemoryPart

GIB = 1 << 30
PARTS = (MemoryPart("weights", 16 * GIB), MemoryPart("activations", 2 * GIB))


def test_what_this_process_holds_already_counts_as_its_own() -> None:
    memory = DeviceMemory(total=100 * GIB, available=99 * GIB)
    assert left_for_cache(memory, 0.9, GIB, PARTS) == (90 - 1 - 18) * GIB


def test_others_do_not_count_while_there_is_room_for_all() -> None:
    memory = DeviceMemory(total=100 * GIB, available=59 * GIB)
    assert left_for_cache(memory, 0.6, GIB, PARTS) == (60 - 1 - 18) * GIB


def test_what_the_driver_keeps_is_not_missed() -> None:
    memory = DeviceMemory(total=100 * GIB, available=98 * GIB + GIB // 2)
    assert left_for_cache(memory, 1.0, GIB, PARTS) == (99 - 1 - 18) * GIB + GIB // 2


def test_others_in_the_way() -> None:
    memory = DeviceMemory(total=100 * GIB, available=29 * GIB)
    with pytest.raises(ConfigError) as caught:
        left_for_cache(memory, 0.9, GIB, PARTS)
    sentence = str(caught.value)
    assert "may use 90.00 GiB (90% of the device's 100.00 GiB), but other processes leave it 30.00 GiB" in sentence
    assert "lower gpu_memory_utilization to 0.30" in sentence
    assert "kv_cache_memory_bytes" in sentence
    left_for_cache(memory, 0.30, GIB, PARTS)


def test_a_model_too_large_for_the_share() -> None:
    memory = DeviceMemory(total=20 * GIB, available=19 * GIB)
    with pytest.raises(ConfigError) as caught:
        left_for_cache(memory, 0.9, GIB, PARTS)
    sentence = str(caught.value)
    assert "may use 18.00 GiB (90% of the device's 20.00 GiB)" in sentence
    assert "weights (16.00 GiB), activations (2.00 GiB), what it holds already (1.00 GiB) take it all" in sentence
    assert "quantised model" in sentence


def test_sizes_set_by_hand_must_fit_what_is_there() -> None:
    memory = DeviceMemory(total=20 * GIB, available=19 * GIB)
    cache = MemoryPart("key/value cache", GIB)
    check_room(memory, GIB, (*PARTS, cache))
    with pytest.raises(
        ConfigError, match=r"has 20\.00 GiB for this process, and weights .* take more\. Lower kv_cache"
    ):
        check_room(memory, GIB, (*PARTS, cache, MemoryPart("graphs", 1)))
