"""How a model's text is shown: Markdown, code, maths; and that none of it runs, loads or leads astray."""

from collections.abc import Callable
from typing import Any

import pytest
from browser_page import answer_with, ask, delta, render, wait_for_answer
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st

OpenPage = Callable[..., Any]


def test_tables_lists_and_links(open_page: OpenPage) -> None:
    node = render(
        open_page(),
        "# Title\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n1. one\n   - two\n\n~~gone~~ https://x.example/a and [b](https://x.example/b)",
    )
    assert node.locator("h1").inner_text() == "Title"
    assert node.locator("td").all_inner_texts() == ["1", "2"]
    assert node.locator("td").last.evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    assert node.locator("ol li ul li").inner_text() == "two"
    assert node.locator("s").inner_text() == "gone"
    for link in node.locator("a").all():
        assert str(link.get_attribute("href")).startswith("https://x.example/")
        assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer")


def test_code_is_coloured_and_copied(open_page: OpenPage) -> None:
    page = open_page(context={"permissions": ["clipboard-read", "clipboard-write"]})
    source = 'def f(x):\n    return "<b>" + x  # words'
    node = render(page, f"```python\n{source}\n```\n\n```\nplain\n```\n\n```nolanguage\n<i>\n```")
    assert node.locator(".bar span").all_inner_texts() == ["python", "", "nolanguage"]
    assert node.locator(".hljs-keyword").first.inner_text() == "def"
    assert node.locator("pre").first.inner_text().strip() == source
    node.get_by_role("button", name="Copy").first.click()
    node.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == source
    colours = node.locator("[class^=hljs]").evaluate_all("nodes => nodes.map(node => getComputedStyle(node).color)")
    assert len(set(colours)) > 2


MATHS = [
    ("a $x^2$ b", 1, 0),
    (r"a \(x^2\) b", 1, 0),
    ("$$\n\\frac{1}{2}\n$$", 0, 1),
    ("$$x$$", 0, 1),
    ("\\[\nx_1\n\\]", 0, 1),
    (r"so \[x_1\] holds", 0, 1),
    ("so $$x$$ holds", 0, 1),
    ("- item\n  $$\n  x\n  $$", 0, 1),
    ("| $a$ | b |\n|---|---|\n| 1 | $c_1$ |", 2, 0),
    (r"$\text{a \$ b}$", 1, 0),
]
NO_MATHS = [
    "from $5 to $10 or $20.",
    "`$x$` and `\\(y\\)`",
    "```\n$x$ $$y$$\n```",
    r"\$x\$",
    "$ x $",
    "$$",
    "$$$$",
    "\\(never closed",
    "costs US$5, US$6",
]


@pytest.mark.parametrize(("text", "inline", "display"), MATHS)
def test_maths_is_typeset(open_page: OpenPage, text: str, inline: int, display: int) -> None:
    node = render(open_page(), text)
    assert node.locator("math").count() == inline + display
    assert node.locator(".katex-display").count() == display
    assert node.locator(".math-source").count() == 0


def test_what_is_no_maths_stays(open_page: OpenPage) -> None:
    page = open_page()
    for text in NO_MATHS:
        assert render(page, text).locator("math").count() == 0, text
    assert render(page, NO_MATHS[0]).inner_text() == NO_MATHS[0]


def test_maths_while_it_is_written(open_page: OpenPage) -> None:
    page = open_page()
    text = "Thus\n$$\n\\frac{a_1}{b_2}\n$$\nand $c_3$."
    for length in range(len(text)):
        node = render(page, text[:length])
        # Half a formula is neither an error nor read as Markdown.
        assert node.locator(".katex-error, em").count() == 0, text[:length]
    assert render(page, text[:14]).locator(".math-source").inner_text() == "\\frac{"
    assert render(page, text).locator("math").count() == 2


def test_maths_that_cannot_be_read_shows_its_source(open_page: OpenPage) -> None:
    node = render(open_page(), r"$\nosuchthing{x}$ and $x^2$")
    assert node.locator(".math-source").inner_text() == r"\nosuchthing{x}"
    assert node.locator("math").count() == 1


MARK = st.sampled_from(
    [
        *("*", "**", "_", "~~", "`", "```", "```js\n", "\n", "\n\n", "- ", "  ", "1. ", "> ", "# ", "|", "|-|-|"),
        *("[", "](", ")", "![", "$", "$$", "\\(", "\\)", "\\[", "\\]", "[a]: "),
    ]
)
WORD = st.sampled_from(
    [
        *("a", "b c", "javascript:alert(1)", "https://x.example/", "<img src=x onerror=alert(1)>", "\\", "&lt;"),
        *("\\href{javascript:alert(1)}{x}", "\\includegraphics{https://x.example/}", "data:text/html,<script>"),
        *("\\htmlStyle{color:red}{x}", "\\url{javascript:alert(1)}", "{", "}", "^", "x_1", "\\frac12"),
    ]
)
TAG_NAMES = (
    "A BLOCKQUOTE BR BUTTON CODE DIV EM H1 H2 H3 H4 H5 H6 HR LI OL P PRE S SPAN STRONG TABLE TBODY TD TH THEAD TR UL"
)


def test_markdown_stays_harmless_and_does_not_depend_on_pieces(open_page: OpenPage) -> None:
    cases: list[tuple[str, list[int]]] = []

    @settings(max_examples=300, deadline=None)
    @given(st.lists(MARK | WORD, max_size=25).map("".join), st.lists(st.integers(0, 60), max_size=4))
    def collect(text: str, cuts: list[int]) -> None:
        cases.append((text, sorted(cuts)))

    collect()
    page = open_page()
    results = page.evaluate(
        """async (cases) => {
            const { renderMarkdown } = await import("/console/markdown.js");
            return cases.map(([text, cuts]) => {
                const whole = document.createElement("div");
                const pieces = document.createElement("div");
                renderMarkdown(whole, text);
                for (const cut of [...cuts, text.length]) renderMarkdown(pieces, text.slice(0, cut));
                const isSame = whole.innerHTML === pieces.innerHTML;
                const formulas = [...whole.querySelectorAll(".katex *")];
                const active = formulas.filter((node) => node.closest("a, img, script, iframe")
                    || [...node.attributes].some(({ name }) => /^on|href|src/.test(name)));
                whole.querySelectorAll(".katex").forEach((node) => node.remove());
                return {
                    tags: [...whole.querySelectorAll("*")].map((node) => node.tagName),
                    links: [...whole.querySelectorAll("a")].map((node) => node.href),
                    isSame,
                    numActive: active.length,
                };
            });
        }""",
        cases,
    )
    for (text, cuts), result in zip(cases, results, strict=True):
        assert result["isSame"], (text, cuts)
        assert result["numActive"] == 0, text
        assert set(result["tags"]) <= set(TAG_NAMES.split()), text
        assert all(link.startswith("https://x.example/") for link in result["links"]), text


ATTACKS = [
    "<script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe><object data=x></object><style>*{display:none}</style>",
    "![](https://x.example/pixel.png) ![a](/v1/models) <img src=https://x.example/p>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt&colon;alert(1)) [c](data:text/html,x) [d](vbscript:x) [e](//x.example)",
    "[f](/x) [g](#x) [h](x) [i](?x)",
    "[a]: javascript:alert(1)\n\n[a] <javascript:alert(1)> [x](\x01javascript:alert(1))",
    '[a](https://x.example/"onmouseover="alert(1)) [b](https://x.example/ "t\\" onclick=alert(1)")',
    "```<img src=x onerror=alert(1)>\n<img src=x onerror=alert(1)>\n```",
    '```html "><script>alert(1)</script>\n<script>alert(1)</script>\n```',
    r"$\href{javascript:alert(1)}{x}$ $\url{javascript:alert(1)}$ $\htmlData{a=b}{x}$ $\includegraphics{https://x.example/p}$",
    r"$\text{<img src=x onerror=alert(1)>}$ $<script>alert(1)</script>$ $\def\a{\a\a}\a$",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <form action=x><input name=y> |",
    "<a id=messages></a><p id=prompt>&lt;img src=x onerror=alert(1)&gt;",
]


@pytest.mark.parametrize("place", ["content", "reasoning"])
def test_hostile_answers_do_nothing(open_page: OpenPage, place: str) -> None:
    """The fixture fails on any request to others, and on anything that the policy had to stop."""
    page = open_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for text in ATTACKS:
        answer_with(page, delta(**{place: text}), delta("stop", content="."))
        ask(page, "Hi")
        wait_for_answer(page)
        page.unroute_all()
    shown = page.locator("#messages")
    assert shown.locator("img, script, iframe, object, style, form, input, svg a, [onerror], [onload]").count() == 0
    for link in shown.locator("a").all():
        assert str(link.get_attribute("href")).startswith("https://x.example/")
    assert page.evaluate("document.querySelectorAll('#messages, #prompt').length") == 2


HOSTILE = [
    *("[" * 50_000, "*a " * 30_000, "x" + "`" * 50_000, "> " * 20_000, "- " * 20_000, "|" * 50_000, "_a" * 30_000),
    *("*" * 40_000 + "a", "![](" * 12_000, "https://" * 6_000, "(((" * 20_000, "#" * 50_000, "**a *b " * 8_000),
    *("\\(" * 25_000, "$a " * 20_000, "$$" * 25_000, "$$ a\n" * 10_000, "\\[ a\n" * 10_000, "$x$ " * 12_000),
    "$" + "{" * 3000 + "}" * 3000 + "$",
    r"$\def\a{\b\b}\def\b{\c\c}\def\c{\d\d}\def\d{xxxxxxxx}\a\a\a$" * 100,
    *("```js\n" + "/" * 20_000 + "\n```", "```xml\n" + "<a " * 9000 + "\n```", "<" * 50_000),
]


def test_text_made_to_be_slow_is_shown_all_the_same(open_page: OpenPage) -> None:
    page = open_page()
    for text in HOSTILE:
        # Work that grew with the square of the length would outlast the driver's patience here.
        assert render(page, text + "\n\nend of it").inner_text().endswith("end of it")


def test_text_too_long_for_markdown_is_shown_as_it_is(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    assert render(page, "*a* " * 60_000).locator("pre").inner_text().startswith("*a* *a*")
