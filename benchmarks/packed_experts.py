"""Experts with packed weights on a GPU: checks the kernels against their twin, and times tiles beside the rule's.

    python benchmarks/packed_experts.py

prints the errors, and for each format and number of tokens the time of the whole operation beside that in bfloat16, and
each GEMM those of the tile that the rule chooses and of the best that were tried. Experts are drawn evenly. Each call
of a graph has a draw of its own, so that weights come from memory.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from octavo.bench.ceilings import call_seconds
from octavo.config.settings import DeviceSettings
from octavo.kernels.dispatch import compile_together
from octavo.kernels.experts import ExpertWeights
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices, PlainPackedExperts, dequantize_expert
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.select import bind_kernels
from octavo.kernels.triton import packed_experts as packed
from octavo.kernels.triton.experts import experts_mlp, order_pairs
from octavo.platforms import runtime_of, select_platform
from octavo.records.experts import ExpertSpec

TOKENS = (1, 8, 32, 128, 256, 1024, 16384)
CHECKED = (1, 8, 256, 1024)
NUM_DRAWS = 8
_GRAPH_SECONDS = 1.5e-3
_REPLAYS = 5
_SHARED_BYTES = 220 << 10
_LARGEST_ERROR = 6e-3
"""Of bfloat16 between the GEMMs and in the result, relative to the twin in float32."""
_LARGEST_ROUNDED_ERROR = 2e-2
"""Likewise with float8 activations, of which some are rounded the other way."""


@dataclass(frozen=True, slots=True)
class Case:
    """A layer's experts in a format.

    Attributes:
        group: inputs that share a scale; 0 for all.
    """

    name: str
    form: str
    group: int
    num_experts: int
    num_chosen: int
    hidden: int
    size: int
    spec: ExpertSpec
    bias: bool = False


A3B = {"num_experts": 128, "num_chosen": 8, "hidden": 2048, "size": 768, "spec": ExpertSpec("silu")}
GPT_OSS = {"num_experts": 32, "num_chosen": 4, "hidden": 2880, "size": 2880, "bias": True}
CASES = (
    Case("gpt-oss-20b mxfp4", "float4", 32, spec=ExpertSpec("clamped_swiglu", 1.702, 7.0), **GPT_OSS),
    Case("A3B float8", "float8", 0, **A3B),
    Case("A3B float8 blocks", "float8", 128, **A3B),
    Case("A3B int4", "int4", 128, **A3B),
    Case("A3B int8", "int8", 128, **A3B),
    Case("A3B Q4_K", "offsets", 32, **A3B),
    Case("A3B Q6_K", "int8", 16, **A3B),
    Case("A3B nvfp4", "nvfp4", 16, **A3B),
)


def main() -> int:
    """Check and measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="only cases whose names contain this text")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--seconds", type=float, default=110.0, help="stop before the next case after so many")
    given = parser.parse_args()
    platform = select_platform("auto")
    platform.prepare(DeviceSettings())
    bind_kernels(platform)
    start, has_failed = time.perf_counter(), False
    print(platform.describe(), flush=True)
    cases = [case for case in CASES if given.cases in case.name]
    for index, case in enumerate(cases):
        spent = time.perf_counter() - start
        if index and spent + spent / index > given.seconds:
            print(f"-- {case.name}: no time left after {spent:.0f} s")
            continue
        with torch.inference_mode():
            has_failed |= not Bench(case, platform.device).run(given.tokens)
        torch.cuda.empty_cache()
        print(f"   {time.perf_counter() - start:.0f} s", flush=True)
    return 1 if has_failed else 0


class Bench:
    """One case's weights, and everything that is done with them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.runtime = runtime_of(device)
        self.random = torch.Generator(device).manual_seed(0)
        bias = (case.num_experts, 2 * case.size), (case.num_experts, case.hidden)
        up_bias, down_bias = (0.1 * self.randn(*shape) if case.bias else None for shape in bias)
        up = self.matrices(2 * case.size, case.hidden)
        down = self.matrices(case.hidden, case.size)
        self.cache: dict[tuple[object, ...], Any] = {}
        self.weights = PackedExperts(up, down, up_bias, down_bias, rounds_inputs=case.form == "float8")

    def randn(self, *shape: int) -> torch.Tensor:
        """Normally distributed bfloat16 values."""
        return torch.randn(*shape, dtype=torch.bfloat16, device=self.device, generator=self.random)

    def matrices(self, num_outputs: int, num_inputs: int) -> PackedMatrices:
        """Random weights that preserve the scale of their input."""
        case, std = self.case, num_inputs**-0.5
        shape = case.num_experts, num_outputs, num_inputs
        groups = case.num_experts, num_inputs // (case.group or num_inputs), num_outputs
        options = {"device": self.device, "generator": self.random}
        scales = std * (0.75 + 0.5 * torch.rand(groups, **options))
        if case.form == "float8":
            return PackedMatrices(self.randn(*shape).to(FLOAT8), scales, None, 8)
        if case.form == "int8":
            return PackedMatrices(torch.randint(256, shape, dtype=torch.uint8, **options), scales / 74, None, 8)
        codes = torch.randint(256, (*shape[:2], num_inputs // 2), dtype=torch.uint8, **options)
        if case.form == "float4":
            middle = 127 + round(math.log2(std / 2.9))
            return PackedMatrices(codes, torch.randint(middle - 1, middle + 2, groups, **options).byte(), None, 4)
        if case.form == "offsets":
            return PackedMatrices(codes, scales / 4.6, None, 4, (scales * torch.rand(groups, **options)).half())
        if case.form == "nvfp4":
            factors = torch.full(groups[::2], 1 / 256 / 2.9, device=self.device)
            return PackedMatrices(codes, (256 * scales).to(FLOAT8), None, 4, factors=factors)
        zeros = torch.randint(40, 80, groups, **options).byte()
        return PackedMatrices(codes, scales / 4.6, zeros, 4)

    def draw(self, num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Experts and shares of tokens, several times; of one token each time other ones."""
        case, draws = self.case, []
        for index in range(NUM_DRAWS):
            scores = torch.rand(num_tokens, case.num_experts, device=self.device, generator=self.random)
            first = index * case.num_chosen % case.num_experts
            if num_tokens == 1:
                scores[:, first : first + case.num_chosen] += 1
            shares, chosen = scores.topk(case.num_chosen)
            draws.append((chosen, shares.softmax(-1)))
        return draws

    def run(self, tokens: list[int]) -> bool:
        """Check and time; whether all results are right."""
        case = self.case
        print(f"== {case.name}: {case.num_experts} experts, {case.num_chosen} chosen, {case.hidden} x {case.size}")
        start = time.perf_counter()
        self.compile(tokens)
        print(f"   compiled in {time.perf_counter() - start:.0f} s")
        is_right = min([self.check(num_tokens) for num_tokens in CHECKED])
        whole = {num_tokens: self.whole(num_tokens) for num_tokens in tokens}
        dense = self.in_bfloat16(tokens)
        for num_tokens in tokens:
            saved = dense[num_tokens] / whole[num_tokens]
            both = f"all {1e6 * whole[num_tokens]:8.1f} us, bfloat16 {1e6 * dense[num_tokens]:8.1f} us"
            print(f"{num_tokens:6} tokens: {both}, {saved:.2f} x")
            for is_gated in (True, False):
                is_right &= self.sweep(num_tokens, is_gated)
        return is_right

    def check(self, num_tokens: int) -> bool:
        """Compare with the twin in float32: weight-only, and with rounded activations."""
        case, weights = self.case, self.weights
        x, (chosen, shares) = self.inputs(num_tokens, True), self.draws(num_tokens)[0]
        biases = [None if bias is None else bias.float() for bias in weights[2:4]]
        twin = weights._replace(gate_up_bias=biases[0], down_bias=biases[1])
        is_right = True
        for rounds in self.ways():
            expected = PlainPackedExperts(twin, case.spec, rounds=rounds)(x.float(), chosen, shares)
            found, same, alone = self.compute(num_tokens, rounds)
            error = float((found.float() - expected).norm() / expected.norm())
            is_fine = error < (_LARGEST_ROUNDED_ERROR if rounds else _LARGEST_ERROR)
            is_same = torch.equal(same[:1], alone)
            is_right &= is_fine and is_same
            print(
                f"   check {num_tokens:5} tokens, {'float8' if rounds else 'own'} activations: error {error:.2e}"
                f"{'' if is_fine else '  WRONG'}{'' if is_same else '  BITS DEPEND ON OTHER TOKENS'}"
            )
        return is_right

    def ways(self) -> tuple[bool, ...]:
        """Whether activations are rounded, in each way of computing."""
        return (False, True) if self.weights.rounds_inputs else (False,)

    def compute(self, num_tokens: int, rounds: bool) -> tuple[torch.Tensor, ...]:
        """The operation, and with tiles that keep a token's bits, for all tokens and for the first."""
        x, (chosen, shares) = self.inputs(num_tokens, True), self.draws(num_tokens)[0]
        multiply = partial(
            packed.packed_experts, weights=self.weights._replace(rounds_inputs=rounds), spec=self.case.spec
        )
        threshold, packed.ROUNDED_PAIRS = packed.ROUNDED_PAIRS, 0
        found = multiply(x, chosen, shares)
        same = multiply(x, chosen, shares)
        alone = multiply(x[:1], chosen[:1], shares[:1])
        packed.ROUNDED_PAIRS = threshold
        return found, same, alone

    def compile(self, tokens: list[int]) -> None:
        """Compile all tiles in parallel; nothing runs, so what was computed is forgotten."""
        try:
            with compile_together(self.device) as compile_only, compile_only():
                for num_tokens, rounds in itertools.product(CHECKED, self.ways()):
                    self.compute(num_tokens, rounds)
                for num_tokens, is_gated in itertools.product(tokens, (True, False)):
                    for tile, rounds in self.tiles(num_tokens, is_gated):
                        self.gemm(num_tokens, is_gated, tile, rounds)(0)
        except Exception as error:
            print(f"   a tile does not compile: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
        self.cache.clear()

    def tiles(self, num_tokens: int, is_gated: bool) -> Iterator[tuple[packed.PackedTile, bool]]:
        """The rule's tile first, and others, with activations as they are or rounded."""
        weight = self.weights.gate_up if is_gated else self.weights.down
        num_pairs = num_tokens * self.case.num_chosen
        per_expert = num_pairs / min(self.case.num_experts, num_pairs)
        own_rule = packed.rounds_inputs(self.weights, num_pairs)
        seen = set()
        both = (own_rule, not own_rule) if self.weights.rounds_inputs and per_expert >= 16 else (own_rule,)
        for rounds in both:
            rule = packed.choose_tile(weight, num_pairs, is_gated=is_gated, is_rounded=rounds)
            for tile in (rule, *_candidates(rule, per_expert, weight, is_gated, rounds)):
                if (tile, rounds) not in seen and _fits(tile, weight, is_gated, rounds):
                    seen.add((tile, rounds))
                    yield tile, rounds

    def gemm(
        self, num_tokens: int, is_gated: bool, tile: packed.PackedTile, rounds: bool
    ) -> Callable[[int], torch.Tensor]:
        """One GEMM with a tile, without the rounding of its activations; takes the number of a draw."""
        case = self.case
        weight = self.weights.gate_up if is_gated else self.weights.down
        bias = self.weights.gate_up_bias if is_gated else self.weights.down_bias
        draws = self.draws(num_tokens)
        x = self.inputs(num_tokens, is_gated)
        x, scales = (
            self.once(("rounded", num_tokens, is_gated), packed.round_inputs, x, weight.group) if rounds else (x, None)
        )
        orders = [
            self.once(("order", num_tokens, tile.block_m, draw), order_pairs, chosen, case.num_experts, tile.block_m)
            for draw, (chosen, _) in enumerate(draws)
        ]
        size = num_tokens * case.num_chosen, case.size if is_gated else case.hidden
        y = self.once(("y", num_tokens, is_gated), partial(torch.empty, dtype=torch.bfloat16, device=self.device), size)
        spec = case.spec if is_gated else None

        def run(draw: int) -> torch.Tensor:
            packed.packed_gemm(x, scales, weight, bias, draws[draw][1], y, orders[draw], tile, spec)
            return y

        return run

    def once(self, key: tuple[object, ...], make: Callable[..., Any], *args: Any) -> Any:
        """What a function makes, once for a key."""
        if key not in self.cache:
            self.cache[key] = make(*args)
        return self.cache[key]

    def inputs(self, num_tokens: int, is_gated: bool) -> torch.Tensor:
        """Activations, the same for all tiles."""
        rows = num_tokens if is_gated else num_tokens * self.case.num_chosen
        values: torch.Tensor = self.once(
            ("x", rows, is_gated), self.randn, rows, self.case.hidden if is_gated else self.case.size
        )
        return values

    def draws(self, num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The same draws for all tiles."""
        found: list[tuple[torch.Tensor, torch.Tensor]] = self.once(("draws", num_tokens), self.draw, num_tokens)
        return found

    def sweep(self, num_tokens: int, is_gated: bool) -> bool:
        """Time all tiles of a GEMM; whether their results agree with the rule's."""
        case, found, is_right = self.case, [], True
        weight = self.weights.gate_up if is_gated else self.weights.down
        expected: dict[bool, torch.Tensor] = {}
        for tile, rounds in self.tiles(num_tokens, is_gated):
            try:
                run = self.gemm(num_tokens, is_gated, tile, rounds)
                y = run(0).clone()
                seconds = self.time(run)
            except Exception as error:
                print(f"      {_name(tile, rounds)}: {type(error).__name__} {str(error).splitlines()[0][:80]}")
                continue
            wanted = expected.setdefault(rounds, y).float()
            if (y.float() - wanted).norm() > 1e-2 * wanted.norm():
                print(f"      {_name(tile, rounds)}: WRONG")
                is_right = False
            found.append((seconds, tile, rounds))
        num_experts = statistics.mean(len(chosen.unique()) for chosen, _ in self.draws(num_tokens))
        num_bytes = num_experts / case.num_experts * sum(t.nbytes for t in weight if isinstance(t, torch.Tensor))
        operations = 2.0 * num_tokens * case.num_chosen * math.prod(weight.codes.shape[1:]) * 8 / weight.bits

        def figures(seconds: float) -> str:
            rates = num_bytes / seconds / 1e9, operations / seconds / 1e12
            return f"{1e6 * seconds:8.1f} us {rates[0]:6.0f} GB/s {rates[1]:6.1f} TFLOP/s"

        rule = found[0]
        print(f"   {'gate and up' if is_gated else 'down':11} rule {_name(*rule[1:]):28} {figures(rule[0])}")
        for seconds, tile, rounds in sorted(found, key=lambda each: each[0])[:3]:
            print(f"   {'':11} best {_name(tile, rounds):28} {figures(seconds)}")
        return is_right

    def whole(self, num_tokens: int) -> float:
        """Seconds of the operation as a model calls it."""
        x, draws = self.inputs(num_tokens, True), self.draws(num_tokens)
        return self.time(lambda draw: packed.packed_experts(x, *draws[draw], self.weights, self.case.spec).rows())

    def in_bfloat16(self, tokens: list[int]) -> dict[int, float]:
        """Seconds of the same experts in bfloat16."""
        dense = []
        for weight in (self.weights.gate_up, self.weights.down):
            values = torch.empty(*weight.codes.shape[:2], weight.num_inputs, dtype=torch.bfloat16, device=self.device)
            for expert, own in enumerate(values):
                own.copy_(dequantize_expert(weight, expert, torch.bfloat16))
            dense.append(values)
        weights = ExpertWeights(dense[0], dense[1], self.weights.gate_up_bias, self.weights.down_bias)
        found = {}
        for num_tokens in tokens:
            x, draws = self.inputs(num_tokens, True), self.draws(num_tokens)
            run = partial(_run_draw, x, draws, weights, self.case.spec)
            found[num_tokens] = self.time(run)
        return found

    def time(self, run: Callable[[int], object]) -> float:
        """Median seconds of a call, of graphs of calls with all draws in turn."""
        for draw in range(2):
            run(draw)
        self.runtime.synchronize()
        seconds = self.time_graph(run, NUM_DRAWS)
        num_calls = min(5 * NUM_DRAWS, round(_GRAPH_SECONDS / seconds))
        return self.time_graph(run, num_calls) if num_calls > NUM_DRAWS else seconds

    def time_graph(self, run: Callable[[int], object], num_calls: int) -> float:
        """Median seconds of a call, of a graph of so many."""

        def run_all() -> tuple[torch.Tensor, ...]:
            for index in range(num_calls):
                run(index % NUM_DRAWS)
            return ()

        with self.runtime.graph_capture() as graphs:
            graph, _ = graphs.capture(run_all)
            graph.replay()
            return statistics.median(call_seconds(graph.replay, self.runtime) for _ in range(_REPLAYS)) / num_calls


def _run_draw(
    x: torch.Tensor,
    draws: list[tuple[torch.Tensor, torch.Tensor]],
    weights: ExpertWeights,
    spec: ExpertSpec,
    draw: int,
) -> torch.Tensor:
    return experts_mlp(x, *draws[draw], weights, spec).rows()


def _candidates(
    rule: packed.PackedTile, per_expert: float, weight: PackedMatrices, is_gated: bool, rounds: bool
) -> Iterator[packed.PackedTile]:
    """Tiles that differ from the rule's in one way, and in two where that is likely to count."""
    narrow = 32 if is_gated else 64
    sizes = [size for size in (16, 32, 64, 128) if min(per_expert, 128) / 2 <= size <= 2 * max(per_expert, 16)]
    shapes = [(narrow, 4), (2 * narrow, 4), (2 * narrow, 8)]
    if per_expert > 64:
        shapes = [(2 * narrow, 8), (4 * narrow, 8), (2 * narrow, 4)]
    has_steps = weight.is_float4 or weight.is_nvfp4 or weight.has_one_group or weight.is_scaled
    steps = [64, 128, 256] if has_steps and not rounds else [rule.block_k]
    for block_m in sizes:
        for block_n, num_warps in shapes:
            yield replace(rule, block_m=block_m, block_n=block_n, num_warps=num_warps)
    for num_stages in (2, 4, 6) if per_expert <= 16 else (2, 4):
        yield replace(rule, num_stages=num_stages)
    for block_k in steps:
        yield replace(rule, block_k=block_k)
        yield replace(rule, block_k=block_k, num_stages=2 if block_k > rule.block_k else 5)
    if per_expert > 64:
        yield replace(rule, block_m=256, num_stages=3)


def _fits(tile: packed.PackedTile, weight: PackedMatrices, is_gated: bool, rounds: bool) -> bool:
    """Whether shared memory has room for the pipeline, and registers for the sums."""
    num_rows = tile.block_n * (2 if is_gated else 1)
    stage = tile.block_k * (num_rows * weight.bits // 8 + tile.block_m * (1 if rounds else 2))
    converted = 2 * num_rows * tile.block_k if weight.is_float4 else 0
    return tile.num_stages * stage + converted <= _SHARED_BYTES and tile.block_m * num_rows <= 32768


def _name(tile: packed.PackedTile, rounds: bool) -> str:
    kind = "f8 " if rounds else ""
    return f"{kind}{tile.block_m}x{tile.block_n}x{tile.block_k} s{tile.num_stages} w{tile.num_warps}"


if __name__ == "__main__":
    raise SystemExit(main())
