"""Builds of the compiled CPU kernels in turns: the GEMMs of a step of SmolLM2-135M.

    python setup.py build_ext --inplace
    python -m pytest -q tests/kernels/test_native_*.py
    python benchmarks/cpu_builds.py amx avx512_bf16 --threads 2

Every layer has weights of its own, as a model has them, so a step of one row reads all of them from memory. Prints
tokens/s that the GEMMs alone would allow and GFLOP/s, the best of each build's turns, and a note if the last row's bits
depend on the others. A build is a name, or the path of a module built elsewhere.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import cast

import torch

from octavo.kernels.cpu.native_blocks import NativeBlocks
from octavo.kernels.cpu.native_linear import PackedLinear
from octavo.kernels.linear import LinearOp
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels
from octavo.quantization.blocks import MADE_AT_LOAD

LAYERS, HIDDEN, INNER, QKV, VOCABULARY = 30, 576, 1536, 960, 49152
ROWS = (1, 16, 512)
SHAPES = {"qkv": (QKV, HIDDEN), "output": (HIDDEN, HIDDEN), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
Step = Callable[[int], None]


def main() -> int:
    """Time builds in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", nargs="+", choices=("bf16", *MADE_AT_LOAD), default=["bf16", *MADE_AT_LOAD])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.8, help="of each build's turn, for each number of rows")
    given = parser.parse_args()
    torch.set_num_threads(1)
    builds = [load(name) for name in given.builds]
    for native in builds:
        native.set_num_threads(given.threads)
    for weights in given.weights:
        models = [Gemms(native, weights) for native in builds]
        for model in models[1:]:
            model.share(models[0])
        for num_rows in given.rows:
            best = [0.0] * len(models)
            for _ in range(given.turns):
                for index, model in enumerate(models):
                    best[index] = max(best[index], model.steps_per_second(num_rows, given.seconds))
            for name, model, rate in zip(given.builds, models, best, strict=True):
                gflops = rate * model.flops(num_rows) / 1e9
                print(
                    f"{weights:5} {num_rows:4} rows  {name:24} {rate * num_rows:9.1f} tokens/s {gflops:8.1f} GFLOP/s"
                    f"  {rate / best[-1]:5.2f} x the last  {'' if model.is_invariant(num_rows) else 'BITS DIFFER'}",
                    flush=True,
                )
    return 0


def load(name: str) -> NativeKernels:
    """A build by its name, or from a file."""
    if not name.endswith(".so"):
        return cast(NativeKernels, import_module(f"octavo.platforms._native_{name}"))
    loader = ExtensionFileLoader(Path(name).name.removesuffix(".abi3.so"), name)
    spec = spec_from_loader(loader.name, loader)
    if spec is None:
        sys.exit(f"{name} is no module")
    module = module_from_spec(spec)
    loader.exec_module(module)
    return cast(NativeKernels, module)


class Gemms:
    """All GEMMs of a model, by one build."""

    def __init__(self, native: NativeKernels, weights: str) -> None:
        self.native = native
        self.weights = weights
        self._layers: list[dict[str, LinearOp]] = []
        self._packed: list[tuple[torch.Tensor, tuple[int, int]]] = []

    def share(self, other: "Gemms") -> None:
        """Use another's packed weights; all builds pack them alike."""
        other.layers()
        self._packed = other._packed

    def layers(self) -> list[dict[str, LinearOp]]:
        """Of each layer, its GEMMs by name; the last one has the head."""
        if not self._layers:
            names = list(SHAPES) * LAYERS + ["head"]
            if not self._packed:
                random = torch.Generator().manual_seed(0)
                shapes = [SHAPES.get(name, (VOCABULARY, HIDDEN)) for name in names]
                self._packed = [(self._pack(shape, random), shape) for shape in shapes]
            gemms = [self._gemm(*packed) for packed in self._packed]
            size = len(SHAPES)
            self._layers = [
                dict(zip(SHAPES, gemms[first : first + size], strict=True)) for first in range(0, len(gemms) - 1, size)
            ]
            self._layers.append({"head": gemms[-1]})
        return self._layers

    def _pack(self, shape: tuple[int, int], random: torch.Generator) -> torch.Tensor:
        weight = torch.randn(shape, generator=random) * shape[1] ** -0.5
        if self.weights in MADE_AT_LOAD:
            return NativeBlocks(self.native).quantize(weight, self.weights)
        weight = weight.bfloat16()
        self.native.pack(weight.data_ptr(), weight.data_ptr(), *shape, TYPE_NUMBERS[torch.bfloat16])
        return weight

    def _gemm(self, packed: torch.Tensor, shape: tuple[int, int]) -> LinearOp:
        if self.weights in MADE_AT_LOAD:
            return NativeBlocks(self.native).linear(packed, self.weights, shape, None, torch.bfloat16)
        return PackedLinear(self.native, packed, TYPE_NUMBERS[torch.bfloat16], shape, None, torch.bfloat16)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """The GEMMs of a step in their order; the head's rows are those of a decode step, or a prompt's last."""
        for layer in self.layers()[:-1]:
            qkv = layer["qkv"](x)
            y = layer["output"](qkv[:, :HIDDEN])
            x = layer["down"](layer["gate_up"].gated(y, "silu"))
        return self.layers()[-1]["head"](x if len(x) <= 64 else x[-1:])

    def steps_per_second(self, num_rows: int, seconds: float) -> float:
        """Of the fastest step within some seconds, after a few: a team may leave out threads when it wakes up."""
        x = torch.randn(num_rows, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
        for _ in range(3):
            self.step(x)
        least, end = float("inf"), time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            self.step(x)
            least = min(least, time.perf_counter() - start)
        return 1 / least

    def flops(self, num_rows: int) -> float:
        """Of a step."""
        layer = sum(outputs * inputs for outputs, inputs in SHAPES.values())
        return 2.0 * (num_rows * layer * LAYERS + (num_rows if num_rows <= 64 else 1) * VOCABULARY * HIDDEN)

    def is_invariant(self, num_rows: int) -> bool:
        """Whether the last row has the same bits alone."""
        x = torch.randn(num_rows, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
        return torch.equal(self.step(x)[-1:], self.step(x[-1:]))


if __name__ == "__main__":
    sys.exit(main())
