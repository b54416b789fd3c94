"""Where a process's computing threads run: how many, on which CPUs, next to which memory, and why.

Measured on two cores of a virtual machine (SmolLM2, bfloat16): a thread bound to one core gains nothing on an idle
machine, and beside a process that keeps one core busy it costs 11 % at batch 16 and up to 39 % at batch 1. So unless
the CPUs are listed, threads are kept on a set of CPUs, if on any, and the system moves them within it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.config.settings import DeviceSettings
from octavo.errors import ConfigError
from octavo.platforms.topology import Core, Topology, format_cpus, parse_cpus

AUTO, NO_BIND = "auto", "nobind"


@dataclass(frozen=True, slots=True)
class Placement:
    """Threads of one rank.

    Attributes:
        num_threads: of the team, the calling thread included.
        cpus: where they may run; empty: wherever the system lets this process run.
        is_pinned: each thread has one of them for itself, in their order.
        nodes: the NUMA nodes that weights and cache lie on, in turns if they are several; empty: the system decides.
        reason: why, as half a sentence.
    """

    num_threads: int
    reason: str
    cpus: tuple[int, ...] = ()
    is_pinned: bool = False
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        threads = f"{self.num_threads} thread{_s(self.num_threads)}"
        where = f" on CPU{_s(len(self.cpus))} {format_cpus(self.cpus)}" if self.cpus else ", not bound"
        if self.is_pinned and len(self.cpus) > 1:
            where += ", one on each"
        memory = f", memory on NUMA node{_s(len(self.nodes))} {format_cpus(self.nodes)}" if self.nodes else ""
        return f"{threads}{where}{memory} ({self.reason})"


def place_threads(
    settings: DeviceSettings,
    topology: Topology,
    rank: int = 0,
    size: int = 1,
    environment: Mapping[str, str] = os.environ,
) -> Placement:
    """Place one rank's threads.

    Args:
        rank, size: its number among the processes that compute on this machine, and theirs.
        environment: where ``OMP_NUM_THREADS`` may be, which counts if ``cpu_threads_bind`` is ``nobind``.

    Raises:
        ConfigError: the settings name CPUs that are not there, or leave none.
    """
    bind = settings.cpu_threads_bind.strip()
    if bind not in (AUTO, NO_BIND):
        return _place_on_list(settings, bind, topology, rank, size)
    cores, sharing = _cores_of_rank(topology.cores, rank, size)
    reserved = _reserved(settings, len(cores), sharing, size)
    own = cores[: len(cores) - reserved * sharing]
    limit = topology.limit(len(topology.cores))
    is_limited = limit < len(topology.cores)
    fitting = max(1, (limit // size if is_limited else len(cores) // sharing) - reserved)
    if bind == NO_BIND:
        count = settings.num_threads or _number(environment.get("OMP_NUM_THREADS", "")) or fitting
        return Placement(count, "cpu_threads_bind is nobind")
    count = settings.num_threads or fitting
    if is_limited:
        return Placement(count, f"the control group grants the time of {topology.quota:g} CPUs, on any core")
    cpus = tuple(core.cpus[0] for core in own)
    nodes = tuple(sorted({core.node for core in own})) if len(topology.nodes) > 1 else ()
    if set(cpus) == set(topology.cpus):
        return Placement(count, "they may use every core", nodes=nodes)
    if not topology.can_bind:
        return Placement(count, "this system binds no threads")
    if count * sharing > len(cpus):
        return Placement(count, f"num_threads is more than the {len(cpus) // sharing} cores")
    return Placement(count, _reason(topology, cores, own), tuple(sorted(cpus)), nodes=nodes)


def _place_on_list(settings: DeviceSettings, bind: str, topology: Topology, rank: int, size: int) -> Placement:
    try:
        parts = [parse_cpus(part) for part in bind.split("|")]
    except ValueError as error:
        raise ConfigError(
            f"cpu_threads_bind is {bind!r}, where {error}; it is auto, nobind, or lists of CPUs such as 0-31|32-63."
        ) from None
    if len(parts) != size:
        raise ConfigError(f"cpu_threads_bind lists the CPUs of {len(parts)} processes, but there are {size}: {bind!r}.")
    cpus = parts[rank]
    if not topology.can_bind:
        raise ConfigError("cpu_threads_bind lists CPUs, but this system does not let threads be bound; set auto.")
    if missing := set(cpus) - set(topology.cpus):
        raise ConfigError(
            f"cpu_threads_bind names CPUs that this process may not use: {format_cpus(missing)}; it may use "
            f"{format_cpus(topology.cpus)}."
        )
    if settings.num_threads not in (None, len(cpus)):
        raise ConfigError(
            f"num_threads is {settings.num_threads}, but cpu_threads_bind lists {len(cpus)} CPUs for rank {rank}; "
            "leave one of them out."
        )
    if len(set(cpus)) < len(cpus):
        raise ConfigError(f"cpu_threads_bind names a CPU twice: {bind!r}.")
    if settings.cpu_reserved_cores is not None:
        raise ConfigError("cpu_reserved_cores is for cpu_threads_bind auto; leave it out where CPUs are listed.")
    nodes = {core.node for core in topology.cores if set(core.cpus) & set(cpus)}
    return Placement(
        len(cpus),
        "cpu_threads_bind lists them",
        cpus,
        is_pinned=True,
        nodes=tuple(sorted(nodes)) if len(topology.nodes) > 1 else (),
    )


def _cores_of_rank(cores: Sequence[Core], rank: int, size: int) -> tuple[list[Core], int]:
    """The cores that a rank computes on, and how many ranks share them."""
    nodes = sorted({core.node for core in cores})
    if len(nodes) >= size:
        own = nodes[rank * len(nodes) // size : (rank + 1) * len(nodes) // size]
        return [core for core in cores if core.node in own], 1
    index = rank * len(nodes) // size
    sharing = sum(other * len(nodes) // size == index for other in range(size))
    return [core for core in cores if core.node == nodes[index]], sharing


def _reserved(settings: DeviceSettings, num_cores: int, sharing: int, size: int) -> int:
    """The number of a rank's cores that are left to other threads: the last ones."""
    reserved = settings.cpu_reserved_cores
    if reserved is None:  # several ranks exchange tensors, in threads of the library that does it
        return 1 if size > 1 and num_cores // sharing > 2 else 0
    if reserved > 0 and reserved * sharing >= num_cores:
        raise ConfigError(
            f"cpu_reserved_cores is {reserved}, which leaves no core to compute on: "
            f"{'a process has' if sharing == 1 else f'{sharing} processes share'} {num_cores}."
        )
    return reserved


def _reason(topology: Topology, cores: list[Core], own: list[Core]) -> str:
    reasons = []
    if len(cores) < len(topology.cores):
        nodes = format_cpus({core.node for core in cores})
        reasons.append(f"the process has the cores of NUMA node {nodes}")
    if any(len(core.cpus) > 1 for core in own):
        reasons.append("one hardware thread of each core")
    if len(own) < len(cores):
        left = len(cores) - len(own)
        reasons.append(f"{left} core{'s are' if left > 1 else ' is'} reserved")
    return ", ".join(reasons)


def _s(count: int) -> str:
    return "s" if count > 1 else ""


def _number(text: str) -> int:
    """The first level of ``OMP_NUM_THREADS``; 0 if there is none."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0
