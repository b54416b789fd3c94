"""Where threads are placed on made-up machines, and what becomes of it on this one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from machines import write_group, write_machine

from octavo.config.settings import DeviceSettings
from octavo.errors import ConfigError
from octavo.platforms import numa
from octavo.platforms.host_threads import HostThreads
from octavo.platforms.numa import bind_memory, prefer_nodes
from octavo.platforms.placement import Placement, place_threads
from octavo.platforms.topology import Topology, read_topology, this_process
from octavo.platforms.weight_memory import huge_zeros


def settings(bind: str = "auto", num_threads: int | None = None, reserved: int | None = None) -> DeviceSettings:
    return DeviceSettings(cpu_threads_bind=bind, num_threads=num_threads, cpu_reserved_cores=reserved)


def place(given: DeviceSettings, found: Topology, rank: int = 0, size: int = 1, **environment: str) -> Placement:
    return place_threads(given, found, rank, size, environment)


@pytest.fixture
def server(tmp_path: Path) -> Topology:
    """Two nodes of four cores, each core with two hardware threads: i and i + 8."""
    return read_topology(range(16), write_machine(tmp_path, 8, threads=2, nodes=[(0, 1, 2, 3), (4, 5, 6, 7)]))


def test_cores_that_are_all_alike_are_left_to_the_system(tmp_path: Path) -> None:
    found = place(settings(), read_topology(range(2), write_machine(tmp_path, 2, nodes=[(0, 1)])))
    assert found == Placement(2, "they may use every core")
    assert str(found) == "2 threads, not bound (they may use every core)"


def test_one_process_takes_one_hardware_thread_of_each_core(server: Topology) -> None:
    found = place(settings(), server)
    assert (found.num_threads, found.cpus, found.is_pinned) == (8, tuple(range(8)), False)
    assert found.nodes == (0, 1)
    assert str(found) == "8 threads on CPUs 0-7, memory on NUMA nodes 0-1 (one hardware thread of each core)"


def test_two_processes_have_a_node_each_and_reserve_a_core(server: Topology) -> None:
    first, second = (place(settings(), server, rank, 2) for rank in range(2))
    assert (first.num_threads, first.cpus, first.nodes) == (3, (0, 1, 2), (0,))
    assert (second.num_threads, second.cpus, second.nodes) == (3, (4, 5, 6), (1,))
    assert str(second) == (
        "3 threads on CPUs 4-6, memory on NUMA node 1 (the process has the cores of NUMA node 1, one hardware thread "
        "of each core, 1 core is reserved)"
    )


@pytest.mark.parametrize(
    ("size", "counts", "nodes"),
    [
        (1, [8], [(0, 1)]),
        (2, [4, 4], [(0,), (1,)]),
        (3, [2, 2, 4], [(0,), (0,), (1,)]),
        (4, [2, 2, 2, 2], [(0,), (0,), (1,), (1,)]),
        (16, [1] * 16, [(0,)] * 8 + [(1,)] * 8),
    ],
)
def test_processes_share_nodes_evenly(
    server: Topology, size: int, counts: list[int], nodes: list[tuple[int, ...]]
) -> None:
    found = [place(settings(reserved=0), server, rank, size) for rank in range(size)]
    assert [one.num_threads for one in found] == counts
    # More processes than cores compute wherever they can.
    assert [one.nodes for one in found] == (nodes if size <= 8 else [()] * size)


def test_more_nodes_than_processes(tmp_path: Path) -> None:
    machine = read_topology(range(8), write_machine(tmp_path, 8, nodes=[(0, 1), (2, 3), (4, 5), (6, 7)]))
    first, second = (place(settings(reserved=0), machine, rank, 2) for rank in range(2))
    assert (first.cpus, first.nodes) == ((0, 1, 2, 3), (0, 1))
    assert (second.cpus, second.nodes) == ((4, 5, 6, 7), (2, 3))


def test_the_affinity_mask_is_respected(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 8, threads=2, nodes=[(0, 1, 2, 3), (4, 5, 6, 7)])
    within_node = place(settings(), read_topology({4, 5, 12}, root))
    assert (within_node.num_threads, within_node.cpus, within_node.nodes) == (2, (4, 5), ())
    siblings = place(settings(), read_topology({3, 11}, root))
    assert (siblings.num_threads, siblings.cpus) == (1, (3,))


def test_cpus_that_are_off_are_not_used(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 4, threads=2, offline=(1, 6))
    found = place(settings(), read_topology(range(8), root))
    assert (found.num_threads, found.cpus) == (4, (0, 2, 3, 5))


@pytest.mark.parametrize(("size", "counts"), [(1, [3]), (2, [1, 1])])
def test_a_quota_limits_threads_and_binds_none(server: Topology, size: int, counts: list[int]) -> None:
    limited = Topology(server.cores, 3.5)
    found = [place(settings(), limited, rank, size) for rank in range(size)]
    assert [one.num_threads for one in found] == counts
    assert all(one.cpus == () and one.nodes == () for one in found)
    assert found[0].reason == "the control group grants the time of 3.5 CPUs, on any core"


def test_a_container_with_two_cpus_of_many(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 64)
    write_group(root, "0::/", {"cpu.max": "200000 100000"})
    found = place(settings(), read_topology(range(64), root))
    assert (found.num_threads, found.cpus) == (2, ())


def test_a_quota_for_all_cores_changes_nothing(server: Topology) -> None:
    assert place(settings(), Topology(server.cores, 8.0)) == place(settings(), server)


def test_reserved_cores_are_left_out(server: Topology) -> None:
    found = place(settings(reserved=2), server)
    assert (found.num_threads, found.cpus) == (6, tuple(range(6)))
    assert place(settings(reserved=2), Topology(server.cores, 5.0)).num_threads == 3
    shared = place(settings(reserved=1), server, 3, 4)
    assert (shared.num_threads, shared.cpus) == (1, (4, 5))


def test_a_number_of_threads_is_kept(server: Topology) -> None:
    few = place(settings(num_threads=3), server)
    assert (few.num_threads, few.cpus) == (3, tuple(range(8)))
    many = place(settings(num_threads=12), server)
    assert (many.num_threads, many.cpus, many.reason) == (12, (), "num_threads is more than the 8 cores")


def test_a_list_has_a_thread_on_each_cpu(server: Topology) -> None:
    first, second = (place(settings("9,2-3|4-7"), server, rank, 2) for rank in range(2))
    assert (first.num_threads, first.cpus, first.is_pinned, first.nodes) == (3, (9, 2, 3), True, (0,))
    assert (second.num_threads, second.cpus, second.nodes) == (4, (4, 5, 6, 7), (1,))
    assert str(second) == "4 threads on CPUs 4-7, one on each, memory on NUMA node 1 (cpu_threads_bind lists them)"
    assert place(settings("3-4", num_threads=2), server).nodes == (0, 1)


def test_nobind_takes_the_number_of_openmp(server: Topology) -> None:
    assert place(settings("nobind"), server) == Placement(8, "cpu_threads_bind is nobind")
    assert place(settings("nobind"), server, OMP_NUM_THREADS="5").num_threads == 5
    assert place(settings("nobind"), server, OMP_NUM_THREADS="6,2").num_threads == 6
    assert place(settings("nobind"), server, OMP_NUM_THREADS="many").num_threads == 8
    assert place(settings("nobind", num_threads=2), server, OMP_NUM_THREADS="5").num_threads == 2
    assert place(settings(), server, OMP_NUM_THREADS="5").num_threads == 8


@pytest.mark.parametrize(
    ("given", "size", "message"),
    [
        (
            settings("all"),
            1,
            "cpu_threads_bind is 'all', where 'all' is no number and no range; it is auto, nobind, or",
        ),
        (settings("0-3"), 2, "lists the CPUs of 1 processes, but there are 2"),
        (settings("0-1|2-3"), 1, "lists the CPUs of 2 processes, but there are 1"),
        (settings("14-18"), 1, "names CPUs that this process may not use: 16-18; it may use 0-15"),
        (settings("0-3", num_threads=2), 1, "num_threads is 2, but cpu_threads_bind lists 4 CPUs for rank 0"),
        (settings("0,1,1"), 1, "names a CPU twice"),
        (settings("0-3", reserved=1), 1, "cpu_reserved_cores is for cpu_threads_bind auto"),
        (settings(reserved=8), 1, "cpu_reserved_cores is 8, which leaves no core to compute on: a process has 8"),
        (settings(reserved=2), 4, "cpu_reserved_cores is 2, which leaves no core .* 2 processes share 4"),
    ],
)
def test_settings_that_do_not_fit_are_errors(server: Topology, given: DeviceSettings, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place(given, server, 0, size)


def test_systems_that_bind_no_threads(server: Topology) -> None:
    other = Topology(server.cores, can_bind=False)
    assert place(settings(), other) == Placement(8, "this system binds no threads")
    with pytest.raises(ConfigError, match="lists CPUs, but this system does not let threads be bound"):
        place(settings("0-3"), other)


def test_a_process_of_its_own_is_bound_when_it_computes() -> None:
    """In a process of its own, whose threads stay bound."""
    cpu = min(this_process().cpus)
    script = f"""
import os, threading
from octavo.platforms.host_threads import HostThreads
stop, idle = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (idle.set(), stop.wait()))
thread.start(); idle.wait()
context = HostThreads(1, ({cpu},))
before = os.sched_getaffinity(0)
with context: pass
assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == {{{cpu}}}
stop.set()
os.sched_setaffinity(0, before)
with context: assert os.sched_getaffinity(0) == before  # once
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_callers_affinity_is_left_alone() -> None:
    before = os.sched_getaffinity(0)
    with HostThreads(1):
        assert os.sched_getaffinity(0) == before


@pytest.fixture
def nodes() -> Iterator[None]:
    """Nodes are preferred for a while."""
    numa._say_why_not.cache_clear()
    yield
    prefer_nodes(())


def test_memory_is_bound_to_nodes(nodes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    def call(*arguments: numa.ctypes.c_ulong) -> int:
        address, num_bytes, mode, mask, bits, flags = (argument.value for argument in arguments)
        words = (bits - 1) // 64
        found = numa.ctypes.cast(mask, numa.ctypes.POINTER(numa.ctypes.c_uint64))
        calls.append((address % 4096, num_bytes, mode, flags, *(found[word] for word in range(words))))
        return 0

    monkeypatch.setattr(numa, "_mbind", lambda: call)
    assert not bind_memory(4096, 8192) and not calls
    prefer_nodes((1,))
    assert bind_memory(4096, 8192)
    prefer_nodes((0, 2, 65))
    assert bind_memory(4096, 8192)
    assert calls == [(0, 8192, 1, 0, 0b10), (0, 8192, 3, 0, 0b101, 0b10)]
    huge_zeros((1000,), torch.float32)
    assert calls[2][0] == 0 and calls[2][1] > 4000


def test_this_system_binds_memory_or_goes_without(nodes: None) -> None:
    """Whatever it answers, memory is there: containers often forbid the call, and not all nodes exist."""
    for preferred in ((0,), (0, 1), (1000,)):
        prefer_nodes(preferred)
        assert huge_zeros((1000,), torch.float32).sum() == 0
