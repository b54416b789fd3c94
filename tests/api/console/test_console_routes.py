"""The console's routes: what is served, to whom, and under which rules."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from fake_engine import FakeEngine

from octavo.api.console.router import console_files
from octavo.api.console.status import ANSWER_LIMIT
from octavo.inputs.processor import InputProcessor
from octavo.telemetry.metrics import Metrics

STATIC = console_files()
VENDORED = "/console/vendor/"
MARKUP_FROM_TEXT = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
StartServer = Callable[..., Any]


class References(HTMLParser):
    """Collects what a page loads, and what would break its rules."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.inline: list[str] = []
        self.ids: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.paths += [value for name in ("src", "href") if (value := given.get(name)) and not value.startswith("#")]
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        if given.get("id"):
            assert given["id"] not in self.ids
            self.ids.add(str(given["id"]))


def script(name: str) -> str:
    return STATIC[f"/console/{name}"].body.decode()


def scripts() -> dict[str, str]:
    """The page's own scripts, without the libraries."""
    own = (path for path in STATIC if path.endswith(".js") and not path.startswith(VENDORED))
    return {path: STATIC[path].body.decode() for path in own}


def test_everything_that_is_referred_to_is_served() -> None:
    page = References(STATIC["/"].body.decode())
    assert {"/" + path for path in page.paths} < STATIC.keys()
    wanted = {"/" + path for path in page.paths}
    for path, text in scripts().items():
        imported = re.findall(r'^import .* from "(.*)";$', text, re.MULTILINE)
        assert len(imported) == len(re.findall(r"^import\b", text, re.MULTILINE)), path
        assert all(name.startswith("./") for name in imported), path
        wanted |= {"/console/" + name.removeprefix("./") for name in imported}
    for path in [path for path in wanted if path.endswith(".css")]:
        fonts = re.findall(r"url\(([^)]+\.woff2)\)", STATIC[path].body.decode())
        wanted |= {f"{path.rpartition('/')[0]}/{name}" for name in fonts}
    assert wanted == STATIC.keys() - {"/"}, "a file that nothing loads is not shipped"


def test_scripts_find_the_elements_they_name() -> None:
    ids = References(STATIC["/"].body.decode()).ids
    for path, text in scripts().items():
        assert set(re.findall(r'byId\("([^"]+)"\)', text)) <= ids, path


def test_metrics_that_the_page_reads_are_there() -> None:
    shown = Metrics("m").render().decode()
    wanted = re.findall(r'(?:sum|mean|rate|growth)\([^"()]*"(\w+)"', script("figures.js"))
    wanted += [f"{name}_bucket" for name in re.findall(r'= "(\w+_seconds)"', script("figures.js"))]
    assert len(wanted) > 8
    for name in wanted:
        assert f"\noctavo:{name}{{" in shown, name


def test_page_needs_nothing_that_its_policy_forbids() -> None:
    assert not References(STATIC["/"].body.decode()).inline
    for path, text in scripts().items():
        assert not MARKUP_FROM_TEXT.search(text), path
    for path, file in STATIC.items():
        outside = re.findall(rb"(?:url\(|@import|src=|href=)\W*(?:https?:)?//", file.body)
        assert not outside or path.startswith(VENDORED), f"{path} reaches outside"


def test_page_and_files_are_served_with_their_rules(server: Any) -> None:
    for path, file in STATIC.items():
        response = server.client.get(path)
        assert response.status_code == 200, path
        assert response.content == file.body
        assert response.headers["content-type"] == file.media_type
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        again = server.client.get(path, headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        plain = server.client.head(path, headers={"accept-encoding": "identity"})
        assert plain.headers["content-length"] == str(len(file.body))
        assert "content-encoding" not in plain.headers and plain.headers["vary"] == "accept-encoding"


def test_what_can_be_smaller_is_compressed(server: Any) -> None:
    total = 0
    for path in STATIC:
        response = server.client.head(path)
        is_compressed = response.headers.get("content-encoding") == "gzip"
        assert is_compressed == (not path.endswith(".woff2")), path
        if is_compressed:
            plain = server.client.head(path, headers={"accept-encoding": "identity"})
            assert plain.headers["etag"] != response.headers["etag"]
        total += int(response.headers["content-length"]) if is_compressed else 0
    # Fonts are loaded where a formula needs them.
    assert total < 300_000, "the page is a few hundred kilobytes on the wire"


def test_no_other_file_can_be_reached(server: Any) -> None:
    names = ("router.py", "static/main.js", "../../app.py", "..%2f..%2fapp.py", "MAIN.JS", "main.js%00")
    for name in names:
        assert server.client.get(f"/console/{name}").status_code == 404, name


def test_status_describes_the_server(server: Any) -> None:
    status = server.client.get("/console/status").json()
    info = server.engine.info
    assert status["models"] == [server.engine.model_name]
    assert status["is_healthy"] is True
    assert status["cache_tokens"] == info.num_blocks * info.block_size
    assert status["max_model_len"] == info.max_model_len
    assert status["sampling"]["temperature"] == 1.0 and status["sampling"]["top_k"] == 0
    assert status["answer_limit"] == ANSWER_LIMIT


@pytest.mark.parametrize(
    ("max_model_len", "max_new_tokens", "reasoning_parser", "limit"),
    [(1000, None, None, 500), (1 << 17, 77, None, 77), (100, 77, None, 50), (1 << 17, None, "qwen3", 8192)],
)
def test_answers_have_a_limit(
    start_server: StartServer, max_model_len: int, max_new_tokens: int | None, reasoning_parser: str | None, limit: int
) -> None:
    engine = FakeEngine()
    engine.info.max_model_len = max_model_len
    defaults = {"temperature": 0.25, "max_new_tokens": max_new_tokens}
    engine.input_processor = InputProcessor(
        engine.info, engine.tokenizer, eos_token_ids=[256], default_params=defaults, max_logprobs=20, seed=0
    )
    status = start_server(engine, reasoning_parser=reasoning_parser).client.get("/console/status").json()
    assert (status["answer_limit"], status["sampling"]["temperature"]) == (limit, 0.25)


def test_page_is_open_but_what_it_asks_for_is_not(start_server: StartServer) -> None:
    client = start_server(api_key=["secret"]).client
    for path in STATIC:
        assert client.get(path).status_code == 200, path
    for path in ("/console/status", "/console/", "/console/none.js", "/metrics", "/v1/models"):
        assert client.get(path).status_code == 401, path
    answer = client.get("/console/status", headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200


def test_nothing_that_is_open_holds_a_secret(start_server: StartServer) -> None:
    client = start_server(api_key=["hunter2"], served_model_name=["inner-name"]).client
    for path in STATIC:
        assert "hunter2" not in client.get(path).text and "inner-name" not in client.get(path).text


def test_console_can_be_switched_off(start_server: StartServer) -> None:
    client = start_server(disable_console=True, api_key=["secret"]).client
    for path in ("/", "/console/main.js", "/console/status"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 404


def test_page_stands_below_a_proxys_prefix(start_server: StartServer) -> None:
    client = start_server(root_path="/llm", api_key=["secret"]).client
    assert client.get("/").content == STATIC["/"].body
    # Every path in the page and its scripts is relative: a prefix in the browser's address carries over.
    page = References(STATIC["/"].body.decode())
    assert not any(path.startswith("/") for path in page.paths)
    for path, text in scripts().items():
        assert not re.search(r'(?:getJson|getText|ask|fetch)\("/', text), path


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of ``#rrggbb``."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *(("text", ground) for ground in ("page", "raised", "sunken", "mine")),
        *(("quiet", ground) for ground in ("page", "raised")),
        *(("on-accent", "accent"), ("bad", "bad-page"), ("accent", "page"), ("second", "raised")),
        *((f"code-{kind}", "sunken") for kind in ("keyword", "string", "number", "name")),
        ("quiet", "sunken"),
    ],
)
def test_text_stands_out_from_its_ground(theme: str, text: str, ground: str) -> None:
    style = STATIC["/console/style.css"].body.decode()
    (rules,) = re.findall(r"color-scheme: " + theme + r";(.*?)}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", rules))
    bright, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5
