import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.outputs.parsers.tags import TagScanner, TagSet

tag_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def scan(tags, pieces):
    """Texts and tags in their order, as one list; neighbouring texts joined."""
    tags = TagSet(tags)
    scanner = TagScanner()
    found: list[tuple[str, str]] = []

    def take():
        while True:
            before, tag = scanner.take_until(tags)
            if before and found and found[-1][0] == "text":
                found[-1] = ("text", found[-1][1] + before)
            elif before:
                found.append(("text", before))
            if tag is None:
                return
            found.append(("tag", tag))

    for piece in pieces:
        scanner.append_text(piece)
        take()
    scanner.end_text()
    take()
    assert scanner.rest == ""
    return found


def by_definition(tags, text):
    """Read from left to right; wherever a tag stands, the longest one is taken."""
    found, plain, position = [], "", 0
    while position < len(text):
        here = [tag for tag in tags if text.startswith(tag, position)]
        if here:
            if plain:
                found.append(("text", plain))
            plain = ""
            found.append(("tag", max(here, key=len)))
            position += len(found[-1][1])
        else:
            plain += text[position]
            position += 1
    return [*found, ("text", plain)] if plain else found


@given(tag_lists, st.lists(st.text("abcd", max_size=5), max_size=12))
def test_any_cut_finds_what_the_definition_finds(tags, pieces):
    assert scan(tags, pieces) == by_definition(tags, "".join(pieces))


@given(tag_lists, st.text("abcd", max_size=12))
def test_only_a_possible_beginning_is_held_back(tags, text):
    scanner = TagScanner()
    scanner.append_text(text)
    while scanner.take_until(TagSet(tags))[1] is not None:
        pass
    held = scanner.rest
    assert held == "" or any(tag.startswith(held) and tag != held for tag in tags)


@pytest.mark.parametrize(
    ("text", "is_finished", "expected"),
    [
        ("<a>x", False, "<a>"),
        ("<a", False, None),
        ("", False, None),
        ("<a", True, ""),
        ("", True, ""),
        ("x<a>", False, ""),
        ("<a>", False, None),  # may become <a>>
        ("<a>", True, "<a>"),
        ("<a>>", False, "<a>>"),
    ],
)
def test_the_tag_that_stands_next(text, is_finished, expected):
    scanner = TagScanner(text)
    if is_finished:
        scanner.end_text()
    assert scanner.take_tag(TagSet(["<a>", "<a>>"])) == expected
    assert scanner.rest == text[len(expected or "") :]


def test_white_space_and_the_rest_are_taken():
    scanner = TagScanner("\n\n  x ")
    assert scanner.take_space("\n") == "\n\n"
    assert scanner.take_space() == "  "
    assert scanner.take_all() == "x "
    assert scanner.take_space() == ""
