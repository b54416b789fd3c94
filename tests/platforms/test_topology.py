"""What is read of a machine's cores and of the control group's quota."""

import os
from pathlib import Path

import pytest
from machines import write_group, write_machine

from octavo.platforms import topology
from octavo.platforms.topology import (
    Core,
    Topology,
    available_cores,
    format_cpus,
    parse_cpus,
    read_topology,
    this_process,
)


@pytest.mark.parametrize("siblings_file", ["core_cpus_list", "thread_siblings_list"])
def test_hardware_threads_belong_to_cores_and_cores_to_nodes(tmp_path: Path, siblings_file: str) -> None:
    root = write_machine(tmp_path, 4, threads=2, nodes=[(0, 1), (2, 3)], siblings_file=siblings_file)
    found = read_topology(range(8), root)
    assert found.cores == (Core(0, (0, 4)), Core(0, (1, 5)), Core(1, (2, 6)), Core(1, (3, 7)))
    assert found.nodes == (0, 1) and found.cpus == tuple(range(8)) and found.quota is None


def test_cores_are_ordered_by_node(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 4, nodes=[(1, 3), (0, 2)])
    assert [core.cpus[0] for core in read_topology(range(4), root).cores] == [1, 3, 0, 2]


def test_only_cpus_that_are_on_and_allowed_count(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 4, threads=2, offline=(2, 5))
    assert read_topology({0, 1, 2, 4, 5, 6}, root).cores == (Core(0, (0, 4)), Core(0, (1,)), Core(0, (6,)))


def test_nodes_without_processors(tmp_path: Path) -> None:
    root = write_machine(tmp_path, 2, nodes=[(0, 1), ()])
    assert read_topology(range(2), root).nodes == (0,)


def test_without_files_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert read_topology({3, 1}, tmp_path) == Topology((Core(0, (1,)), Core(0, (3,))))


@pytest.mark.parametrize(
    ("line", "files", "quota"),
    [
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000", "cpu.max": "max 100000"}, 3.0),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "300000 100000"}, 2.0),
        ("0::/outside/container", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/a", {"unified/a/cpu.max": "400000 100000"}, 4.0),
        ("4:cpu,cpuacct:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "9"}, None),
        ("4:cpu,cpuacct:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "18", "cpu,cpuacct/a/cpu.cfs_period_us": "9"}, 2.0),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.5),
        ("1:cpu:/docker/1", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2.0),
        ("3:cpuset:/a", {"cpuset/a/cpu.cfs_quota_us": "100000", "cpuset/a/cpu.cfs_period_us": "50000"}, None),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "100000"}, None),
    ],
)
def test_the_quota_of_the_control_group(tmp_path: Path, line: str, files: dict[str, str], quota: float | None) -> None:
    root = write_machine(tmp_path, 2)
    write_group(root, "4:memory:/", {"memory/memory.limit_in_bytes": "1"})
    write_group(root, line, files)
    assert read_topology(range(2), root).quota == quota


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (0.5, 1), (1.0, 1), (2.9, 2), (16.0, 8)])
def test_a_quota_limits_threads_to_those_that_never_stand_still(quota: float | None, threads: int) -> None:
    assert Topology((), quota).limit(8) == threads


@pytest.mark.parametrize(("text", "cpus"), [("0", (0,)), ("0-2", (0, 1, 2)), ("4,0-1, 8", (4, 0, 1, 8)), ("7-7", (7,))])
def test_lists_are_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "2-", "3-1", "1-2-3", "0:2", "²"])
def test_other_texts_are_no_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r"no number and no range|ends before"):
        parse_cpus(text)


def test_this_process_sees_its_affinity_mask() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity masks; run on Linux, an AMD EPYC")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert this_process().cpus == (min(before),)
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert set(this_process().cpus) == before


def test_systems_without_affinity_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(topology.os, "cpu_count", lambda: 10)
    found = this_process()
    assert len(found.cores) == 10 and not found.can_bind
    assert available_cores() == 10
