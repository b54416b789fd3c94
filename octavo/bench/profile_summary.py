"""Summarises a Chrome trace: time by kernel and by group of kernels."""

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST_CATEGORIES = ("cpu_op",)
# In order: the first pattern that matches gives the group.
_GROUPS = {
    "attention": r"attention|attend|flash|fmha|sdpa|_decode_kernel|prefill|aten::bmm",
    "sampling": r"sampl|survey|filter_kernel|_finish_kernel|arg_?max|top_?[kp]|sort|softmax|penal|logprob|draw|uniform",
    "inputs": r"prepare_inputs|append_tokens|memcpy|memset|_to_copy|aten::copy_|gather_kernel",
    "GEMM": r"linear|stream_kernel|gemm|gemv|nvjet|cutlass|matmul|splitk|cublas|::mm$|addmm",
    "norms": r"norm",
    "rotation": r"rope|rotary",
    "activations": r"gate|silu|gelu|act_and_mul",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _GROUPS.items()}
GROUP_NAMES = ("GEMM", "attention", "norms", "rotation", "activations", "sampling", "inputs", "other")
"""All groups, in the order of their usual share of a step."""

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel over the whole window, or one operator if there is no device.

    Attributes:
        total: sum of durations in seconds.
        own: the same without the time in which an earlier kernel still ran (for operators, one that it called).
    """

    name: str
    group: str
    count: int
    total: float
    own: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Seconds by kernel, the longest first.

    Attributes:
        wall: duration of the window.
        busy: time in which any kernel ran.
    """

    wall: float
    busy: float
    kernels: tuple[KernelTime, ...]

    def groups(self) -> dict[str, float]:
        """Own seconds by group, the longest first."""
        sums: dict[str, float] = {}
        for kernel in self.kernels:
            sums[kernel.group] = sums.get(kernel.group, 0.0) + kernel.own
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file, gzipped or not."""
    packed = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)[
        "traceEvents"
    ]
    return events


def summarise_trace(events: Sequence[Event], window: str) -> TraceSummary:
    """Sum up the kernels within the event named ``window``, or operators if there are no kernels.

    Times of events are microseconds, as traces have them.
    """
    frame = next(event for event in events if event.get("name") == window and event.get("cat") == "user_annotation")
    begin, end = frame["ts"], frame["ts"] + frame["dur"]
    inside = sorted(
        (event for event in events if event.get("ph") == "X" and begin <= event["ts"] < end),
        key=lambda event: (event["ts"], -event["dur"]),
    )
    on_device = [event for event in inside if event.get("cat") in _DEVICE_CATEGORIES]
    timed = _own_times(on_device) if on_device else _self_times(inside)
    sums: dict[str, list[float]] = {}
    for name, total, own in timed:
        entry = sums.setdefault(name, [0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += total
        entry[2] += own
    kernels = [
        KernelTime(name, group_of(name), int(count), total / 1e6, own / 1e6)
        for name, (count, total, own) in sums.items()
    ]
    kernels.sort(key=lambda kernel: -kernel.own)
    return TraceSummary(frame["dur"] / 1e6, sum(kernel.own for kernel in kernels), tuple(kernels))


def group_of(name: str) -> str:
    """The group of a kernel, by its name."""
    return next((group for group, pattern in _PATTERNS.items() if pattern.search(name)), "other")


def short_name(name: str) -> str:
    """A kernel's name without C++ decoration."""
    bare = re.sub(r"^void\s+", "", name).split("(")[0]
    if "<" in bare:
        # torch's kernels are distinguished by their template arguments, not by the wrapping template.
        inner = re.findall(r"(\w*(?:[Ff]unctor|[Kk]ernel|[Oo]p|norm|gemm|fwd)\w*)", bare)
        bare = bare.split("<")[0].split("::")[-1] + (f" {inner[-1]}" if inner else "")
    return bare if len(bare) <= _LONGEST_NAME else bare[: _LONGEST_NAME - 1] + "…"


def _own_times(events: Iterable[Event]) -> Iterable[tuple[str, float, float]]:
    """Device events by start: name, duration and the part of it in which no earlier one ran."""
    reached = float("-inf")
    for event in events:
        start, end = event["ts"], event["ts"] + event["dur"]
        yield _device_name(event), event["dur"], max(0.0, end - max(start, reached))
        reached = max(reached, end)


def _device_name(event: Event) -> str:
    """A kernel's name; for GEMMs with the grid, since one kernel serves weights of all shapes."""
    name = short_name(event["name"])
    grid = event.get("args", {}).get("grid")
    return f"{name} {'×'.join(str(size) for size in grid)}" if grid and group_of(name) == "GEMM" else name


def _self_times(events: Iterable[Event]) -> Iterable[tuple[str, float, float]]:
    """Operators of each thread: name, duration and the part of it in which none that it called ran."""
    by_thread: dict[Any, list[Event]] = {}
    for event in events:
        if event.get("cat") in _HOST_CATEGORIES:
            by_thread.setdefault(event.get("tid"), []).append(event)
    for thread in by_thread.values():
        own = [event["dur"] for event in thread]
        open_events: list[int] = []
        for index, event in enumerate(thread):
            while open_events and _end(thread[open_events[-1]]) <= event["ts"]:
                open_events.pop()
            if open_events:
                own[open_events[-1]] -= event["dur"]
            open_events.append(index)
        yield from ((event["name"], event["dur"], max(0.0, left)) for event, left in zip(thread, own, strict=True))


def _end(event: Event) -> float:
    end: float = event["ts"] + event["dur"]
    return end
