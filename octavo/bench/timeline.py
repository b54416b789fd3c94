"""Pictures of a served load: a timeline of each request, and the distribution of prompt and answer lengths.

Plotly and Matplotlib belong to the extra ``bench``; without them there is a warning and no picture.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from octavo.bench.load import RequestRecord

logger = logging.getLogger(__name__)

Segment = tuple[int, float, float]
"""A request's index, the start of a segment of its time, and the segment's length, both in seconds."""


def timeline_segments(records: Sequence[RequestRecord], thresholds_ms: Sequence[float]) -> dict[str, list[Segment]]:
    """Segments of the requests' time by kind: time to the first token, and gaps between tokens by length.

    Args:
        thresholds_ms: upper bounds of the classes of gaps, in milliseconds, ascending.
    """
    bounds = [*thresholds_ms, float("inf")]
    names = ["ITL" if not thresholds_ms else f"ITL below {bound:g} ms" for bound in bounds]
    if thresholds_ms:
        names[-1] = f"ITL from {thresholds_ms[-1]:g} ms"
    segments: dict[str, list[Segment]] = {"TTFT": [], **{name: [] for name in names}}
    for number, record in enumerate(records):
        if record.ttft is None:
            continue
        segments["TTFT"].append((number, record.start, record.ttft))
        begin = record.start + record.ttft
        for gap in record.itl:
            place = next(index for index, bound in enumerate(bounds) if gap * 1e3 < bound or bound == bounds[-1])
            segments[names[place]].append((number, begin, gap))
            begin += gap
    return segments


def plot_timeline(records: Sequence[RequestRecord], thresholds_ms: Sequence[float], path: Path) -> bool:
    """Write an interactive page with a bar for each request.

    Returns:
        Whether it was written.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        logger.warning("--plot-timeline needs Plotly: pip install 'octavo[bench]'. No timeline is written.")
        return False
    segments = timeline_segments(records, thresholds_ms)
    if not segments["TTFT"]:
        logger.warning("No request brought a token; the timeline is empty.")
    figure = go.Figure(
        [
            go.Bar(
                name=name,
                orientation="h",
                y=[number for number, _, _ in pieces],
                base=[begin for _, begin, _ in pieces],
                x=[length for _, _, length in pieces],
                marker_line_width=0,
                hovertemplate="request %{y}<br>from %{base:.3f} s<br>%{x:.3f} s",
            )
            for name, pieces in segments.items()
        ]
    )
    figure.update_layout(
        barmode="overlay",
        bargap=0,
        title="Requests over time",
        xaxis={"title": "Seconds since the start", "rangemode": "tozero"},
        yaxis={"title": "Request", "autorange": "reversed"},
    )
    figure.write_html(path, include_plotlyjs=True)
    return True


def plot_dataset_stats(records: Sequence[RequestRecord], path: Path) -> bool:
    """Draw how the tokens of prompts and answers are distributed.

    Returns:
        Whether it was drawn.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        logger.warning("--plot-dataset-stats needs Matplotlib: pip install 'octavo[bench]'. No picture is drawn.")
        return False
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    counts = {
        "Tokens of a prompt": [record.prompt_tokens for record in records],
        "Tokens of an answer": [record.output_tokens for record in records],
    }
    for axis, (title, values) in zip(axes, counts.items(), strict=True):
        axis.hist(values, bins=min(50, max(1, len(set(values)))))
        axis.set(title=title, xlabel="tokens", ylabel="requests")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
