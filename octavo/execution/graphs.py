"""Captured steps: one graph replay instead of hundreds of launches.

Kernels read lengths on the device and skip padding, so a graph captured for a size serves every smaller step. Three
series of sizes are captured: pure decode steps, small steps with chunks, and steps of a few fresh prompts alone (for a
short time to first token). Larger steps run as single launches: they keep the device busy for longer than launching
takes. How work is captured is the device's matter: :class:`octavo.platforms.GraphCapture`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from octavo.kernels import StepShape
from octavo.platforms import DeviceRuntime, Graph, GraphCapture
from octavo.telemetry.progress import start_bar

Forward = Callable[[StepShape], tuple[torch.Tensor, torch.Tensor]]
"""Runs a step of a shape from device state; returns hidden states and logits."""

Sample = Callable[[torch.Tensor], None]
"""Draws from logits ``[rows, vocab]`` into device state."""

# GEMM tiles have 128 tokens; from a few hundred tokens on, GEMM time grows with the number of tokens, padding included.
_MIXED_TOKENS = (32, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
_FIRST_TOKENS = (32, 64, 128, 256, 512)
_FIRST_ROWS = 4
_POLL_SECONDS = 0.005


@dataclass(slots=True)
class CapturedStep:
    """The graphs of one step size.

    Attributes:
        forward: from device state to ``hidden`` ``[tokens, hidden]`` and ``logits`` ``[rows, vocab]``.
        sample: from logits to tokens in device state, for batches that are sampled without the host.
    """

    shape: StepShape
    forward: Graph
    sample: Graph
    hidden: torch.Tensor
    logits: torch.Tensor


def ladder(
    max_num_seqs: int, max_tokens: int, num_exact: int = 0, decode_len: int = 1, max_cached_tokens: int | None = None
) -> list[StepShape]:
    """The shapes to capture, largest first, so that later captures reuse the memory of the first.

    Args:
        num_exact: every batch size up to this gets its own decode graph.
        decode_len: maximum number of tokens of a decoding row.
        max_cached_tokens: see :attr:`StepShape.num_cached_tokens`, of steps with chunks.
    """
    decodes = [decode_shape(rows, decode_len) for rows in decode_sizes(max_num_seqs, num_exact)]
    mixed = []
    for tokens in _MIXED_TOKENS:
        # Each row costs a little in the head and in attention, so bound them: small steps have few rows; large ones may
        # be a full batch plus one prompt.
        rows = min(max_num_seqs, tokens // 2 if 64 < tokens <= max_num_seqs else tokens)
        if tokens <= max_tokens:
            mixed.append(StepShape(rows, tokens, tokens, True, True, False, decode_len, max_cached_tokens))
    first = [
        StepShape(min(_FIRST_ROWS, max_num_seqs), tokens, tokens, False, True, True, decode_len)
        for tokens in _FIRST_TOKENS
        if tokens <= max_tokens
    ]
    return sorted(decodes + mixed + first, key=lambda shape: -shape.num_tokens)


def decode_shape(num_rows: int, decode_len: int) -> StepShape:
    """A step of ``num_rows`` decoding rows of at most ``decode_len`` tokens."""
    return StepShape(num_rows, num_rows * decode_len, decode_len, True, False, False, decode_len)


def decode_sizes(max_num_seqs: int, num_exact: int = 0) -> list[int]:
    """Batch sizes of the decode graphs: padding is at most a quarter of a batch, or 8 rows.

    Args:
        num_exact: no padding up to this size.
    """
    sizes = [1, 2, 4, 8]
    while sizes[-1] < max_num_seqs:
        last = sizes[-1]
        sizes.append(last + max(8, 1 << (last.bit_length() - 3)))
    return sorted({min(size, max_num_seqs) for size in (*range(1, num_exact + 1), *sizes)})


class StepGraphs:
    """Captures steps and finds the smallest one that a step fits into."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime
        self._decodes: list[CapturedStep] = []
        self._mixed: list[CapturedStep] = []

    def capture(
        self,
        shapes: list[StepShape],
        forward: Forward,
        sample: Sample,
        *,
        is_ready: Callable[[StepShape], bool] = lambda shape: True,
        show_progress: bool = False,
    ) -> None:
        """Capture every shape.

        Args:
            is_ready: whether a step's kernels are loaded; others are captured first, as nothing may be loaded during a
                capture.
            show_progress: show a progress bar on a terminal if the capture takes long.
        """
        bar = start_bar(len(shapes), "Capturing graphs", "step sizes", is_wanted=show_progress)
        with bar, self._runtime.graph_capture() as graphs:
            for shape in _as_ready(shapes, is_ready):
                captured = _capture_one(shape, graphs, forward, sample)
                (self._mixed if shape.has_chunks else self._decodes).append(captured)
                bar.update()
        self._decodes.sort(key=lambda step: step.shape.num_rows)
        self._mixed.sort(key=lambda step: (step.shape.num_tokens, step.shape.num_rows))

    def find(self, shape: StepShape) -> CapturedStep | None:
        """The smallest captured step that a step of this exact shape fits into."""
        if not shape.has_chunks:
            return next((step for step in self._decodes if step.shape.num_rows >= shape.num_rows), None)
        return next((step for step in self._mixed if _fits(shape, step.shape)), None)


def _as_ready(shapes: Sequence[StepShape], is_ready: Callable[[StepShape], bool]) -> Iterator[StepShape]:
    """The shapes in their order, but for those that are not ready yet."""
    left = list(shapes)
    while left:
        shape = next(filter(is_ready, left), None)
        if shape is None:
            time.sleep(_POLL_SECONDS)
        else:
            left.remove(shape)
            yield shape


def _capture_one(shape: StepShape, graphs: GraphCapture, run_forward: Forward, run_sample: Sample) -> CapturedStep:
    def draw() -> tuple[torch.Tensor, ...]:
        run_sample(logits)
        return ()

    forward, (hidden, logits) = graphs.capture(lambda: run_forward(shape))
    sample, _ = graphs.capture(draw)
    return CapturedStep(shape, forward, sample, hidden, logits)


def _fits(shape: StepShape, captured: StepShape) -> bool:
    """Whether a step with chunks can run in a captured one."""
    return (
        captured.num_tokens >= shape.num_tokens
        and captured.num_rows >= shape.num_rows
        and captured.has_decodes >= shape.has_decodes
        and captured.is_fresh <= shape.is_fresh
        and (captured.num_cached_tokens is None or (shape.num_cached_tokens or 0) <= captured.num_cached_tokens)
    )
