"""Made-up Linux machines: the files from which their cores and control groups are read."""

from collections.abc import Sequence
from pathlib import Path

from octavo.platforms.topology import format_cpus


def write_machine(
    root: Path,
    num_cores: int,
    *,
    threads: int = 1,
    nodes: Sequence[Sequence[int]] = (),
    offline: Sequence[int] = (),
    siblings_file: str = "core_cpus_list",
) -> Path:
    """A machine whose core ``i`` has the hardware threads ``i``, ``i + num_cores`` and so on.

    Args:
        nodes: the cores of each NUMA node; none leaves out the folder of nodes.
        offline: CPUs that are off, which have no topology.
    """
    cpus = root / "sys/devices/system/cpu"
    online = [cpu for cpu in range(num_cores * threads) if cpu not in offline]
    cpus.mkdir(parents=True)
    (cpus / "online").write_text(format_cpus(online) + "\n")
    for cpu in online:
        folder = cpus / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        siblings = [other for other in online if other % num_cores == cpu % num_cores]
        (folder / siblings_file).write_text(format_cpus(siblings) + "\n")
    for number, cores in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(format_cpus(cpu for cpu in online if cpu % num_cores in cores) + "\n")
    return root


def write_group(root: Path, line: str, files: dict[str, str]) -> None:
    """Put this process into a control group.

    Args:
        line: of ``/proc/self/cgroup``.
        files: path below the folder of control groups → content.
    """
    process = root / "proc/self/cgroup"
    process.parent.mkdir(parents=True, exist_ok=True)
    with process.open("a") as lines:
        lines.write(line + "\n")
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
