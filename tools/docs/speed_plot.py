"""Draws ``docs/pictures/speed.svg`` from ``benchmarks/results``: Octavo's speed beside vLLM's, case by case."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
MODELS = {"Qwen3-0.6B": "0.6b", "Qwen3-8B": "8b"}
REFERENCE = "h200-vllm-0.23.0"

# The ratio is above 1 where Octavo is faster. Start-up, ten times faster, would dwarf the rest: it is in the notes.
CASES = {
    "ttft_128_ms": "time to first token, 128 in",
    "tpot_bs1_ms": "time per token, batch 1",
    "decode_bs8_tok_s": "decode, batch 8",
    "decode_bs32_tok_s": "decode, batch 32",
    "decode_bs128_tok_s": "decode, batch 128",
    "decode_bs256_tok_s": "decode, batch 256",
    "prefill_4096_tok_s": "prefill, 64 × 4,096",
    "mixed_1024_128_total_tok_s": "1,000 × (1,024 in, 128 out)",
    "chat_like_out_tok_s": "chat-like lengths",
}

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _TOP = 760, 212, 190, 24, 14, 48
_LARGEST = 4.0
_OURS = "#0072b2"
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.line { stroke: #59636e; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .quiet { fill: #9198a1; } .line { stroke: #9198a1; } }"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case of one model."""

    title: str
    ours: float
    theirs: float
    is_time: bool

    @property
    def ratio(self) -> float:
        """How many times as fast Octavo is."""
        return self.theirs / self.ours if self.is_time else self.ours / self.theirs

    @property
    def values(self) -> str:
        """Both figures, with their unit."""
        if self.is_time:
            return f"{self.ours:.2f} / {self.theirs:.2f} ms"
        return f"{self.ours:,.0f} / {self.theirs:,.0f} tok/s"


def compare(name: str) -> list[Comparison]:
    """The cases of a model that both engines were measured in."""
    ours, theirs = _figures(f"h200-engine-{name}"), _figures(f"{REFERENCE}-{name}")
    return [
        Comparison(title, ours[case], theirs[case], case.endswith("_ms"))
        for case, title in CASES.items()
        if case in ours and case in theirs
    ]


def draw() -> str:
    """The picture."""
    lines: list[str] = []
    y = 0
    for title, name in MODELS.items():
        comparisons = compare(name)
        lines.append(f'<text x="12" y="{y + 22}" class="title">{title}</text>')
        lines.append(f'<text x="{_x(1):.1f}" y="{y + 22}" text-anchor="middle" class="quiet">vLLM = 1</text>')
        lines.append(f'<text x="{_WIDTH - 12}" y="{y + 22}" text-anchor="end" class="quiet">Octavo / vLLM</text>')
        for row, comparison in enumerate(comparisons):
            lines += _draw_row(comparison, y + _TOP + row * _ROW)
        bottom = y + _TOP + len(comparisons) * _ROW
        lines.append(f'<line x1="{_x(1):.1f}" x2="{_x(1):.1f}" y1="{y + 30}" y2="{bottom - 6}" class="line"/>')
        y = bottom + 4
    for note in _notes():
        lines.append(f'<text x="12" y="{y + 14}" class="quiet">{escape(note)}</text>')
        y += 18
    height = y + 8
    label = "; ".join(
        f"{title}, {one.title}: {one.ratio:.2f} times vLLM's speed"
        for title, name in MODELS.items()
        for one in compare(name)
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(label, quote=True)}">'
    )
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", *lines, "</svg>"]) + "\n"


def _draw_row(comparison: Comparison, y: int) -> list[str]:
    end = _x(min(comparison.ratio, _LARGEST))
    return [
        f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end">{escape(comparison.title)}</text>',
        f'<rect x="{_LEFT}" y="{y - 11}" width="{end - _LEFT:.1f}" height="{_BAR}" rx="2" fill="{_OURS}"/>',
        f'<text x="{end + 6:.1f}" y="{y}">{comparison.ratio:.2f}×</text>',
        f'<text x="{_WIDTH - 12}" y="{y}" text-anchor="end" class="quiet">{comparison.values}</text>',
    ]


def _x(ratio: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ratio / _LARGEST


def _notes() -> tuple[str, str]:
    starts = "; ".join(
        f"{title} {_figures(f'h200-engine-{name}')['startup_s']:.0f} s / "
        f"{_figures(f'{REFERENCE}-{name}')['startup_s']:.0f} s"
        for title, name in MODELS.items()
    )
    return (
        "One NVIDIA H200, bfloat16, dummy weights, offline, vLLM 0.23.0. Longer bars are faster.",
        f"Start-up with cold caches, Octavo / vLLM: {starts}.",
    )


def _figures(name: str) -> Mapping[str, float]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    figures: Mapping[str, float] = (result["engines"][0] if "engines" in result else result["engine"])["figures"]
    return figures


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT), file=sys.stderr)
