"""Tables of figures, for terminals and for Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first column has names, the others numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """The table as aligned text."""
        lines = [self.headers, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headers))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """The table in Markdown."""
        rule = ["---", *["---:"] * (len(self.headers) - 1)]
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.headers, rule, *self.rows))


def number(value: float | None) -> str:
    """A number with three to four digits; empty for None."""
    if value is None:
        return ""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def share(part: float, whole: float | None) -> str:
    """A percentage; empty without a whole."""
    return f"{part / whole:.0%}" if whole else ""
