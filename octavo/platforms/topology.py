"""The processor's cores as this process may use them: hardware threads, NUMA nodes, the control group's quota.

Linux tells in ``/sys`` and ``/proc``; elsewhere every CPU counts as a core. What is made of it is in ``placement.py``.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core.

    Attributes:
        node: its NUMA node.
        cpus: the system's numbers of its hardware threads that this process may use, at least one.
    """

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """What a process may compute on.

    Attributes:
        cores: by node, then by number.
        quota: the processor time that the control group grants, in CPUs; None if it sets no limit.
        can_bind: the system lets threads be bound to CPUs.
    """

    cores: tuple[Core, ...]
    quota: float | None = None
    can_bind: bool = True

    @property
    def cpus(self) -> tuple[int, ...]:
        """All hardware threads."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes of the cores."""
        return tuple(sorted({core.node for core in self.cores}))

    def limit(self, count: int) -> int:
        """A number of threads, or as many as the quota lets run all the time."""
        return count if self.quota is None else max(1, min(count, int(self.quota)))


def this_process() -> Topology:
    """The topology that this process sees now."""
    if not hasattr(os, "sched_getaffinity"):
        return Topology(tuple(Core(0, (cpu,)) for cpu in range(os.cpu_count() or 1)), can_bind=False)
    return read_topology(frozenset(os.sched_getaffinity(0)))


def available_cores() -> int:
    """Number of hardware threads that this process may use at a time."""
    topology = this_process()
    return topology.limit(len(topology.cpus))


def read_topology(allowed: Collection[int], root: Path = _ROOT) -> Topology:
    """Read a Linux system's files.

    Args:
        allowed: the CPUs in the process's affinity mask.
        root: the folder that holds ``sys`` and ``proc``.
    """
    return Topology(_read_cores(frozenset(allowed), root), _read_quota(root))


def parse_cpus(text: str) -> tuple[int, ...]:
    """The numbers in a list such as ``0-3,8``, in its order.

    Raises:
        ValueError: it is no such list.
    """
    cpus: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{part.strip()!r} is no number and no range")
        cpus += range(int(first), int(last or first) + 1)
        if dash and int(last) < int(first):
            raise ValueError(f"{part.strip()!r} ends before it begins")
    return tuple(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Numbers as a list with ranges, such as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@cache
def _read_cores(allowed: frozenset[int], root: Path) -> tuple[Core, ...]:
    online = _read_cpus(root / _CPUS / "online")
    usable = (allowed & frozenset(online) if online else allowed) or allowed
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / _NODES).glob("node[0-9]*")
        for cpu in _read_cpus(folder / "cpulist")
    }
    cores: dict[tuple[int, ...], Core] = {}
    for cpu in sorted(usable):
        topology = root / _CPUS / f"cpu{cpu}" / "topology"
        siblings = _read_cpus(topology / "core_cpus_list") or _read_cpus(topology / "thread_siblings_list") or (cpu,)
        key = tuple(sorted({cpu, *siblings} & usable))
        cores.setdefault(key, Core(nodes.get(cpu, 0), key))
    return tuple(sorted(cores.values(), key=lambda core: (core.node, core.cpus)))


def _read_cpus(path: Path) -> tuple[int, ...]:
    try:
        return parse_cpus(path.read_text().strip())
    except (OSError, ValueError):  # not there, or empty: a node without CPUs
        return ()


@cache
def _read_quota(root: Path) -> float | None:
    return min((quota for folder in _cpu_groups(root) for quota in _quotas(folder)), default=None)


def _cpu_groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups that bound this process's time: its own and those around it, v1 or v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for name in (controllers, "cpu") if controllers else ("", "unified"):
            # Within a container, the path may be that outside, while the container's own group is the mount's root.
            group = Path(path.lstrip("/"))
            yield from (mount / name / part for part in (group, *group.parents))


def _quotas(group: Path) -> Iterator[float]:
    """The limit of a control group in CPUs, if it has one."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # no limit: "max", or -1
        yield int(quota) / int(period)
