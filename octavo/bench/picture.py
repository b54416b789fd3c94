"""Draws stacked bars as SVG: where the time of a step goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _BAR_HEIGHT, _ROW_HEIGHT, _MARGIN = 760, 26, 58, 12
_LEGEND_COLUMN, _LEGEND_ROW = 187, 20
# Distinguishable with colour blindness, on light and dark grounds (Okabe and Ito, "Color Universal Design", 2008).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900", "#7a5195", "#3b7a57")
_GAP_COLOUR = "#9a9a9a"
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.quiet { fill: #59636e; }
.inside { fill: #ffffff; font-size: 12px; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .quiet { fill: #9198a1; } }"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One whole and its parts.

    Attributes:
        parts: milliseconds by name, in order; ``gaps`` is grey.
    """

    title: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of the whole."""
        return sum(self.parts.values())


def draw_bars(bars: Sequence[Bar]) -> str:
    """An SVG of bars under each other, each as wide as the picture, with one legend for all.

    Colours suit light and dark pages; the text follows the reader's scheme.
    """
    names = list(dict.fromkeys(name for bar in bars for name in bar.parts if name != "gaps"))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)} | {"gaps": _GAP_COLOUR}
    lines = []
    for row, bar in enumerate(bars):
        lines += _draw_bar(bar, colours, _MARGIN + row * _ROW_HEIGHT)
    legend = [*names, *(["gaps"] if any("gaps" in bar.parts for bar in bars) else [])]
    legend_top = _MARGIN + len(bars) * _ROW_HEIGHT
    columns = (_WIDTH - 2 * _MARGIN) // _LEGEND_COLUMN
    for index, name in enumerate(legend):
        x, y = _MARGIN + index % columns * _LEGEND_COLUMN, legend_top + index // columns * _LEGEND_ROW
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{colours[name]}"/>')
        lines.append(f'<text x="{x + 18}" y="{y + 11}">{escape(name)}</text>')
    height = legend_top + -(-len(legend) // columns) * _LEGEND_ROW + _MARGIN
    label = escape("; ".join(_bar_label(bar) for bar in bars), quote=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{label}">'
    )
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", *lines, "</svg>"]) + "\n"


def _draw_bar(bar: Bar, colours: dict[str, str], top: float) -> list[str]:
    width = _WIDTH - 2 * _MARGIN
    lines = [
        f'<text x="{_MARGIN}" y="{top + 13}">{escape(bar.title)}</text>',
        f'<text x="{_WIDTH - _MARGIN}" y="{top + 13}" text-anchor="end" class="quiet">{bar.total:.3g} ms</text>',
    ]
    left = float(_MARGIN)
    for name, value in bar.parts.items():
        part = width * value / bar.total if bar.total else 0.0
        hint = escape(f"{name}: {value:.3g} ms, {value / bar.total:.0%}" if bar.total else name)
        lines.append(
            f'<rect x="{left:.2f}" y="{top + 20}" width="{part:.2f}" height="{_BAR_HEIGHT}" fill="{colours[name]}">'
            f"<title>{hint}</title></rect>"
        )
        if part > 36:
            lines.append(
                f'<text x="{left + part / 2:.2f}" y="{top + 37}" text-anchor="middle" class="inside">'
                f"{value / bar.total:.0%}</text>"
            )
        left += part
    return lines


def _bar_label(bar: Bar) -> str:
    return f"{bar.title}: " + ", ".join(f"{name} {value:.3g} ms" for name, value in bar.parts.items())
