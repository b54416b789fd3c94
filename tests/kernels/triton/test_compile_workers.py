"""Kernels are compiled in other processes, and in this one if those fail."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

pytest.importorskip("triton")

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon

from octavo.kernels.triton import compile_workers, prefill_hopper_tiles
from octavo.kernels.triton.compile_workers import CompileWorkers
from octavo.kernels.triton.kernel_description import describe, read_description
from octavo.kernels.triton.prefill_hopper_tiles import find_tile

TARGET = GPUTarget("cuda", 90, 32)
SCRIPT = Path(__file__).with_name("compile_in_processes.py")


@gluon.jit
def kernel_of_a_test(x):
    pass


def test_a_kernel_is_the_same_after_its_description() -> None:
    signature = {"x": "*bf16", "pair": ("i32", ("*fp32", "constexpr")), "scale": "constexpr"}
    constants = {(0,): None, (1, 1): 16, (2,): float("inf"), (3,): (True, 1.0, ("a", ()))}
    attributes = {(0,): [["tt.divisibility", 16]], (1, 1): []}
    options = {"num_warps": 4, "extern_libs": (("libdevice", "/a/path"),), "arch": None}
    description = describe(find_tile, signature, constants, attributes, TARGET, options)
    assert description is not None
    source, target, read_options = read_description(description)
    assert source.fn is find_tile
    assert type(source).__name__ == "GluonASTSource"
    assert (source.signature, source.constants, source.attrs) == (signature, constants, attributes)
    assert str(source.constants) == str(constants), "types are those of before, too"
    assert (target, read_options) == (TARGET, options)


def test_constants_of_modules_come_with_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = prefill_hopper_tiles
    used = {("LIMIT", 0): (tl.constexpr(-1.5), vars(module)), ("TYPE", 0): (tl.float32, vars(module))}
    monkeypatch.setattr(find_tile, "used_global_vals", used)
    monkeypatch.setattr(module, "LIMIT", "of another process", raising=False)
    description = describe(find_tile, {}, {}, {}, TARGET, {})
    assert description is not None
    read_description(description)
    assert module.LIMIT.value == -1.5
    assert not hasattr(module, "TYPE")


@pytest.mark.parametrize(
    ("function", "constant"), [(find_tile, tl.float32), (find_tile, 1 << 70), (kernel_of_a_test, 1)]
)
def test_other_kernels_have_no_description(function: Any, constant: Any) -> None:
    assert describe(function, {"x": "constexpr"}, {(0,): constant}, {}, TARGET, {}) is None


Start = Callable[[str], CompileWorkers]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts two processes that run a program of the test's, which finds its sockets in ``sockets``."""
    started: list[CompileWorkers] = []

    def start_with(program: str) -> CompileWorkers:
        python = tmp_path / "python"
        begin = "import os, socket, sys, time\nsockets = [socket.socket(fileno=int(fd)) for fd in sys.argv[4:]]\n"
        python.write_text(f"#!{sys.executable}\n{begin}{textwrap.dedent(program)}")
        python.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.setattr(compile_workers, "_number", lambda num_devices: 2)
        started.append(CompileWorkers(None, 1))
        return started[-1]

    yield start_with
    for workers in started:
        workers.close()


def compile_all(workers: CompileWorkers, count: int = 40) -> list[int]:
    """Compile kernels as an engine does; each takes a moment in this process."""

    def here(number: int) -> int:
        time.sleep(0.01)
        return number

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda number: workers.compile(b"kernel %d" % number, lambda: here(number)), range(count)))


SERVE = """
    sockets = sockets[: 1 if os.fork() else None][-1:] + sockets[2:]
    sockets[0].send(b"ready")
    while data := sockets[0].recv(1 << 16):
        with open(sys.argv[0] + ".log", "ab") as log:
            log.write(data + b";")
        {then}
        sockets[0].send(b"compiled")
"""


@pytest.mark.parametrize(
    "program",
    [
        "sys.exit(1)",
        "[s.send(b'what') for s in sockets]",
        SERVE.format(then="os._exit(1)"),
        SERVE.format(then="sockets[0].send(b'failed'); continue"),
        SERVE.format(then="pass"),
    ],
    ids=["does not start", "says something else", "dies at a kernel", "cannot compile", "compiles"],
)
def test_every_kernel_is_compiled_whatever_the_processes_do(start: Start, program: str) -> None:
    assert compile_all(start(program)) == list(range(40))


def test_processes_take_kernels(start: Start, tmp_path: Path) -> None:
    workers = start(SERVE.format(then="pass"))
    while not (tmp_path / "python.log").exists():
        compile_all(workers)
    assert b"kernel" in (tmp_path / "python.log").read_bytes()


def test_processes_that_start_early_take_all_kernels(start: Start, tmp_path: Path) -> None:
    workers = start(f"time.sleep(0.2)\n{textwrap.dedent(SERVE.format(then='pass'))}")
    workers.start(num_here=0)
    assert compile_all(workers) == list(range(40))
    assert (tmp_path / "python.log").read_bytes().count(b"kernel") == 40


def test_processes_that_hang_are_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_workers, "_START_SECONDS", 0.1)
    monkeypatch.setattr(compile_workers, "_COMPILE_SECONDS", 0.1)
    assert compile_all(start("time.sleep(1000)")) == list(range(40))
    assert compile_all(start(SERVE.format(then="time.sleep(1000)"))) == list(range(40))


def test_processes_that_hang_end_with_the_workers(start: Start) -> None:
    workers = start("os.fork()\ntime.sleep(1000)")
    workers.start()
    assert workers._process is not None
    leader = psutil.Process(workers._process.pid)
    while not leader.children():
        time.sleep(0.01)
    (child,) = leader.children()
    workers.close()
    assert not leader.is_running()
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_without_a_program_kernels_are_compiled_here(start: Start, tmp_path: Path) -> None:
    workers = start("")
    (tmp_path / "python").unlink()
    assert compile_all(workers) == list(range(40))


def test_processes_have_none_of_this_ones_files(start: Start, tmp_path: Path) -> None:
    program = """
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        with open(sys.argv[0] + ".files", "w") as log:
            log.write(" ".join(os.readlink(link) for link in links if os.path.exists(link)))
    """
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        workers = start(program)
        workers.start()
        assert workers._process is not None
        workers._process.wait(60)
    files = (tmp_path / "python.files").read_text()
    assert "socket" in files
    assert "secret" not in files


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_compile_on_gpu.py has a whole engine")
def test_other_processes_compile_under_the_same_keys(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names = {
        "_gather_rows_kernel",
        "_quantize_normed_kernel",
        "filter_kernel",
        "specialised_linear_kernel",
        "stream_kernel",
    }
    assert names <= set(done.stdout.splitlines())


def test_long_kernels_begin_before_others_that_wait() -> None:
    places = compile_workers._Places()
    taken: list[str] = []
    threads = []
    for name in ("short", "other short", "long"):
        threads.append(threading.Thread(target=take, args=(places, name, taken)))
        threads[-1].start()
        while len(places._waiting) < len(threads):
            time.sleep(0.001)
    for number in range(3):
        places.put(compile_workers._Here.FOR_GOOD)
        while len(taken) == number:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert taken == ["long", "short", "other short"]


def take(places: Any, name: str, taken: list[str]) -> None:
    places.take(is_long=name == "long")
    taken.append(name)
