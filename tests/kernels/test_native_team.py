"""The thread team of the compiled kernels, tapes, and calls with wrong arguments."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from native_builds import built, threads

from octavo.kernels.cpu.native_linear import NativeLinear
from octavo.platforms.native import NativeKernels

FORKED = """
import os, sys, torch
import octavo.platforms._native_{name} as native
from octavo.kernels.cpu.native_linear import NativeLinear

native.set_num_threads(3)
gemm = NativeLinear(native, torch.randn(512, 96), None)
x = torch.randn(64, 96)
expected = gemm(x)
child = os.fork()
if child == 0:
    is_right = torch.equal(gemm(x), expected)
    native.set_num_threads(2)
    os._exit(0 if is_right and native.num_threads() == 2 and torch.equal(gemm(x), expected) else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) or not torch.equal(gemm(x), expected))
"""

BOUND = """
import os, time, numpy as np, torch
import octavo.platforms._native_{name} as native
from octavo.kernels.cpu.native_linear import NativeLinear

gemm = NativeLinear(native, torch.eye(512), None)
x = torch.randn(64, 512)
cpus = sorted(os.sched_getaffinity(0))

def become(expected, one_each, *numbers):
    # Of the threads that are there after a run and were not before; each binds itself once it runs.
    chosen = np.array(numbers, np.int32)
    native.bind_threads(chosen.ctypes.data, len(numbers), one_each)
    before = set(os.listdir("/proc/self/task"))
    assert torch.equal(gemm(x), x)
    threads = sorted((int(thread) for thread in set(os.listdir("/proc/self/task")) - before))
    end = time.monotonic() + 60
    while (found := [os.sched_getaffinity(thread) for thread in threads]) != expected and time.monotonic() < end:
        time.sleep(0.01)
    assert found == expected, found

gemm(x)  # the threads of PyTorch's and NumPy's libraries are there
native.set_num_threads(3)
become([set(cpus)] * 2, False)
become([{{cpus[0]}}] * 2, False, cpus[0])
become([set(cpus)] * 2, False, *cpus)
become([{{cpus[-1]}}, {{cpus[0]}}], True, cpus[0], cpus[-1], cpus[0])
become([], True, cpus[0], cpus[-1], cpus[0])  # the same threads go on
become([set(cpus)] * 2, False, 5000)  # there is no such CPU
assert os.sched_getaffinity(0) == set(cpus)
"""

FIRST_CALLS = """
import sys, threading, torch
import octavo.platforms._native_{name} as native
from octavo.kernels.cpu.native_linear import NativeLinear

weight = torch.eye(512, dtype=torch.float16)
x = torch.randn(64, 512).half()
start, wrong = threading.Barrier(4), []

def work():
    start.wait()
    for _ in range(5):
        if not torch.equal(NativeLinear(native, weight.clone(), None)(x), x):
            wrong.append(1)

workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
sys.exit(len(wrong))
"""


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run_script(script: str, name: str) -> None:
    """In a process of its own. The team is the same in all builds, so that one of them is enough."""
    ended = subprocess.run([sys.executable, "-c", script.format(name=name)], check=False, timeout=120)
    assert ended.returncode == 0


def make_gemms(native: NativeKernels) -> list[tuple[NativeLinear, torch.Tensor, torch.Tensor]]:
    """GEMMs with inputs and results: large enough to let other Python threads run, all through the scratch memory."""
    gemms = []
    for seed in range(4):
        gemm = NativeLinear(native, random(seed, 512, 300 + 50 * seed, dtype=torch.float16), None)
        x = random(seed + 9, 70 + seed, 300 + 50 * seed, dtype=torch.float16)
        gemms.append((gemm, x, gemm(x)))
    return gemms


def is_right(gemm: NativeLinear, x: torch.Tensor, expected: torch.Tensor, *, times: int = 15) -> bool:
    return all(torch.equal(gemm(x), expected) for _ in range(times))


def test_several_python_threads_call_at_once(native: NativeKernels) -> None:
    gemms = make_gemms(native)
    for num_threads in (1, 3):
        with threads(native, num_threads), ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda case: is_right(*case), gemms))


@pytest.mark.long
@pytest.mark.parametrize("name", built()[:1])
def test_the_first_calls_may_come_at_once(name: str) -> None:
    run_script(FIRST_CALLS, name)


@pytest.mark.long
@pytest.mark.parametrize("name", built()[:1])
def test_a_forked_child_computes(name: str) -> None:
    run_script(FORKED, name)


def test_the_team_grows_and_shrinks(native: NativeKernels) -> None:
    gemm, x, expected = make_gemms(native)[0]
    with threads(native, 1):
        for num_threads in (4, 1, 2, 3, 1, 4, 4, 2) * 5:
            native.set_num_threads(num_threads)
            assert native.num_threads() == num_threads
            assert torch.equal(gemm(x), expected)
        native.set_num_threads(0)
        assert native.num_threads() == 1


@pytest.mark.long
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system binds no threads; run on Linux, an AMD EPYC"
)
@pytest.mark.parametrize("name", built()[:1])
def test_the_teams_threads_are_bound_and_the_callers_are_not(name: str) -> None:
    run_script(BOUND, name)


def test_the_team_grows_and_shrinks_while_others_call(native: NativeKernels) -> None:
    gemms = make_gemms(native)
    with threads(native, 1), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(is_right, *case, times=40) for case in gemms[:2]]
        count = 0
        while not all(case.done() for case in waiting):
            count += 1
            native.set_num_threads(1 + count % 4)
        assert all(case.result() for case in waiting)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_replay_computes_anew(native: NativeKernels, num_threads: int) -> None:
    x, normed, y, gated = torch.zeros(5, 40), torch.zeros(5, 40), torch.zeros(5, 64), torch.zeros(5, 32)
    weight, table = random(0, 64, 40), random(1, 9, 40)
    index = torch.zeros(5, dtype=torch.int64)
    gemm = NativeLinear(native, weight.clone(), None)

    def compute() -> None:
        native.gather(table.data_ptr(), index.data_ptr(), x.data_ptr(), 5, 160)
        native.rms_norm(x.data_ptr(), 0, normed.data_ptr(), x[0].data_ptr(), 5, 40, 1e-6, 0, 0)
        gemm(normed, out=y)
        native.activate(y.data_ptr(), y[:, 32:].data_ptr(), gated.data_ptr(), 5, 32, 64, 64, 32, 1, 0)

    with threads(native, num_threads):
        owners: list[object] = []
        native.start_tape(owners)
        compute()
        tape = native.end_tape()
        for step in range(20):
            index.copy_(torch.arange(5) * (step + 1) % 9)
            native.replay(tape)
            replayed = gated.clone()
            gated.zero_()
            compute()  # is not recorded any more
            assert gated.any()
            assert torch.equal(replayed, gated)


def test_weights_may_be_freed_after_a_replay(native: NativeKernels) -> None:
    """Idle threads may still be fetching them into their caches."""
    x, y = torch.ones(1, 1024), torch.empty(1, 8192)
    other = NativeLinear(native, torch.ones(64, 1024), None)
    with threads(native, 3):
        gemm = NativeLinear(native, torch.ones(8192, 1024), None)
        native.start_tape([])
        gemm(x, out=y)
        tape = native.end_tape()
        native.replay(tape)
        assert (y == 1024).all()
        del gemm, tape
        for _ in range(20):
            assert (other(x) == 1024).all()


def test_an_empty_tape(native: NativeKernels) -> None:
    native.replay(native.end_tape())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("set_num_threads", ()),
        ("set_num_threads", ("2",)),
        ("set_num_threads", (1.5,)),
        ("num_threads", (1,)),
        ("bind_threads", (0, 0)),
        ("start_tape", ()),
        ("start_tape", (1,)),
        ("end_tape", (1,)),
        ("new_plan", (1,)),
        ("packed_bytes", (0, 16)),
        ("pack", (0, 0, 16, 16)),
        ("pack", (None, 0, 16, 16, 0)),
        ("gather_packed", (0,) * 6),
        ("linear", ()),
        ("linear", (0,) * 10),
        ("linear", (0,) * 14),
        ("linear", (0,) * 12 + ("silu",)),
        ("rms_norm", (0,) * 8),
        ("rms_norm", (0, 0, 0, 0, 0, 0, "1e-6", 0, 0)),
        ("activate", (0,) * 7),
        ("combine", (0,) * 22),
        ("gather", (0, 0, [], 0, 0)),
        ("replay", ()),
        ("replay", (3,)),
        ("plan_attention", (0,) * 11),
        ("attention", (0,) * 30),
    ],
)
def test_wrong_arguments_are_errors(native: NativeKernels, name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        getattr(native, name)(*arguments)


def test_a_plan_is_no_tape(native: NativeKernels) -> None:
    with pytest.raises(TypeError, match=r"octavo\.tape"):
        native.replay(native.new_plan())
