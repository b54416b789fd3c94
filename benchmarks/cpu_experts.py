"""A layer's experts on a CPU: time, bytes of weights read per second and operations per second, by format and batch.

    python benchmarks/cpu_experts.py
    python benchmarks/cpu_experts.py --shape small --formats int4 --tokens 1 16

Experts are drawn evenly. Layers take turns, so that weights come from memory, and their operations are replayed from a
tape, as in recorded decode steps.
"""

import argparse
import time
from dataclasses import dataclass

import torch

from octavo.kernels.block_experts import BlockExperts, BlockMatrices, make_block_experts
from octavo.kernels.blocks import FORMATS, LANES
from octavo.kernels.experts import ExpertsOp, ExpertWeights, make_experts
from octavo.kernels.select import bind_kernels
from octavo.platforms import select_platform
from octavo.platforms.native import NativeKernels, native_kernels
from octavo.platforms.recording import Recording
from octavo.platforms.weight_memory import huge_zeros
from octavo.records.experts import ExpertSpec

_LEAST_BYTES = 256 << 20
"""Weights of all layers together, which no cache holds."""
_SECONDS = 0.4
_SPEC = ExpertSpec("silu")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a layer."""

    num_experts: int
    num_chosen: int
    hidden: int
    size: int

    @property
    def num_weights(self) -> int:
        """Of an expert."""
        return 3 * self.hidden * self.size


SHAPES = {"small": Shape(32, 4, 768, 384), "a3b": Shape(128, 8, 2048, 768), "gpt-oss": Shape(32, 4, 2880, 2880)}


def make_layer(shape: Shape, name: str, seed: int) -> tuple[ExpertsOp, float]:
    """A layer's experts, and bytes per weight."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (2 * shape.size, shape.hidden), (shape.hidden, shape.size)
    if name == "bfloat16":
        weights = [
            huge_zeros((shape.num_experts, *size), torch.bfloat16).normal_(0, 0.02, generator=generator)
            for size in sizes
        ]
        return make_experts(weights[0], ExpertWeights(*weights), _SPEC), 2.0
    matrices = []
    for num_outputs, num_inputs in sizes:
        own = name if num_inputs % FORMATS[name].unit == 0 else "Q5_0"  # as llama.cpp does
        num_bytes = FORMATS[own].panel_bytes(num_inputs)
        packed = huge_zeros((shape.num_experts, num_outputs // LANES, num_bytes), torch.uint8)
        matrices.append(BlockMatrices(packed.random_(0, 64, generator=generator), own, num_inputs))
    num_bytes = sum(matrix.packed.nbytes for matrix in matrices)
    blocks = BlockExperts(matrices[0], matrices[1])
    return make_block_experts(blocks.gate_up.packed, blocks, _SPEC), num_bytes / shape.num_weights / shape.num_experts


def measure(native: NativeKernels, shape: Shape, name: str, tokens: list[int]) -> None:
    """Print a format's lines."""
    first, bytes_each = make_layer(shape, name, 0)
    count = max(2, round(_LEAST_BYTES / (bytes_each * shape.num_weights * shape.num_experts)))
    layers = [first, *(make_layer(shape, name, seed)[0] for seed in range(1, count))]
    generator = torch.Generator().manual_seed(0)
    for num_tokens in tokens:
        x = torch.randn(num_tokens, shape.hidden, generator=generator).bfloat16()
        num_active = 0
        with Recording(native) as recording:
            for layer in layers:
                scores = torch.rand(num_tokens, shape.num_experts, generator=generator)
                chosen = scores.topk(shape.num_chosen).indices
                num_active += len(chosen.unique())
                layer(x, chosen, torch.full(chosen.shape, 1 / shape.num_chosen))
        times = []
        start = time.perf_counter()
        while time.perf_counter() - start < _SECONDS:
            before = time.perf_counter()
            recording.replay()
            times.append(time.perf_counter() - before)
        seconds = sorted(times)[len(times) // 4] / len(layers)
        num_bytes = num_active / len(layers) * shape.num_weights * bytes_each
        operations = 2 * num_tokens * shape.num_chosen * shape.num_weights
        print(
            f"{name:9} {num_tokens:5} tokens {seconds * 1e6:9.1f} us  {num_bytes / seconds / 1e9:6.1f} GB/s  "
            f"{operations / seconds / 1e9:7.1f} GFLOP/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="a3b")
    parser.add_argument("--formats", nargs="+", default=["bfloat16", "int8", "int4", "Q4_K"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 16, 512])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    platform, native = select_platform("cpu"), native_kernels()
    if native is None:
        raise SystemExit("There are no compiled kernels.")
    bind_kernels(platform)
    native.set_num_threads(arguments.threads)
    for name in arguments.formats:
        measure(native, SHAPES[arguments.shape], name, arguments.tokens)


if __name__ == "__main__":
    main()
