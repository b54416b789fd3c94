from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.http_client import EventParser

STREAM = (
    b': comment\n\ndata: {"a": "\xe2\x80\xa8"}\r\n\r\nevent: x\ndata:two\ndata: lines\n\n\n\ndata: [DONE]\n\ndata: half'
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in pairwise(edges) for event in parser.feed(STREAM[start:end])]
    assert events == ['{"a": "\u2028"}'.encode(), b"two\nlines", b"[DONE]"]
