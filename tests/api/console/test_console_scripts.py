"""The page's scripts that need no page, run by Node.js; the others are tested in a browser."""

import json
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from octavo.api.console.router import console_files

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="needs Node.js (a program named node); ran on Debian with Node.js 20"
)
RunScript = Callable[..., Any]
OWN_SCRIPTS = [path for path in console_files() if path.endswith(".js") and "/vendor/" not in path]


@pytest.fixture(scope="module")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> RunScript:
    """Runs JavaScript beside the page's modules, with ``input`` given; returns what it puts into ``output``."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "package.json").write_text('{"type": "module"}')
    for path in OWN_SCRIPTS:
        (folder / Path(path).name).write_bytes(console_files()[path].body)

    def run(script: str, value: Any = None) -> Any:
        program = f"""
            import {{ readFileSync }} from "node:fs";
            const input = JSON.parse(readFileSync(0));
            let output;
            {script}
            console.log(JSON.stringify(output));
        """
        (folder / "test.js").write_text(program)
        assert NODE is not None
        words = [NODE, "test.js"]
        ended = subprocess.run(
            words, input=json.dumps(value), cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


@pytest.mark.parametrize("path", OWN_SCRIPTS)
def test_scripts_are_valid_modules(path: str, tmp_path: Path) -> None:
    module = tmp_path / "module.mjs"
    module.write_bytes(console_files()[path].body)
    assert NODE is not None
    ended = subprocess.run([NODE, "--check", str(module)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=8)
EVENT = st.lists(LINE, min_size=1, max_size=3)
ENDING = st.sampled_from(["\n", "\r\n", "\r"])


def test_events_do_not_depend_on_how_the_stream_is_cut(run_script: RunScript) -> None:
    cases: list[tuple[list[str], list[str]]] = []

    @given(st.lists(st.tuples(EVENT, ENDING), max_size=4), st.lists(st.integers(0, 80), max_size=12))
    def collect(events: list[tuple[list[str], str]], cuts: list[int]) -> None:
        wire = "".join(
            ": a comment" + end + "".join(f"data: {line}{end}" for line in lines) + end for lines, end in events
        )
        # A lone CR at the end may be half of a line's end: the parser must not wait for what never comes.
        places = sorted({min(cut, len(wire)) for cut in cuts} | {0, len(wire)})
        pieces = [wire[start:end] for start, end in pairwise(places)]
        cases.append((pieces, ["\n".join(lines) for lines, _ in events]))

    collect()
    parsed = run_script(
        """
        const { EventParser } = await import("./sse.js");
        output = input.map((pieces) => {
          const parser = new EventParser();
          return pieces.flatMap((piece) => parser.push(piece));
        });
        """,
        [pieces for pieces, _ in cases],
    )
    assert len(cases) > 20
    for (pieces, expected), found in zip(cases, parsed, strict=True):
        assert found == expected, pieces


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def test_answers_are_put_together(run_script: RunScript) -> None:
    chunks = [
        chunk(role="assistant", content=""),
        chunk(reasoning="Let me "),
        chunk(reasoning_content="see."),
        chunk(content="Grüße"),
        chunk(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
        chunk(tool_calls=[{"index": 1, "id": "b", "function": {"name": "go", "arguments": "{}"}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        chunk(tool_calls=[{"index": 10**9, "function": {"arguments": "x"}}, {"index": -1}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}},
    ]
    answer = run_script(
        """
        const { newAnswer, takeChunk } = await import("./answer.js");
        output = newAnswer();
        for (const chunk of input) takeChunk(output, chunk);
        """,
        chunks,
    )
    assert answer["reasoning"] == "Let me see."
    assert answer["content"] == "Grüße"
    assert [call["function"] for call in answer["tool_calls"]] == [
        {"name": "look", "arguments": '{"x": 1}'},
        {"name": "go", "arguments": "{}"},
    ]
    assert [call["id"] for call in answer["tool_calls"]] == ["a", "b"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["usage"] == {"prompt": 3, "completion": 7}


def test_requests_hold_what_was_set_and_nothing_else(run_script: RunScript) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "reasoning": "hm", "seconds": 1, "tool_calls": [{"id": "a"}]},
        {"role": "tool", "tool_call_id": "a", "content": "7"},
    ]
    settings = {"system": "Be kind.", "temperature": "0", "top_p": "", "max_tokens": "9", "tools": "", "stop": "\n"}
    body = run_script(
        """
        const { requestBody } = await import("./request.js");
        output = requestBody(input.messages, "m", input.settings, { answer_limit: 7 });
        """,
        {"messages": messages, "settings": settings},
    )
    assert body == {
        "model": "m",
        "temperature": 0,
        "max_tokens": 9,
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]},
            {"role": "tool", "tool_call_id": "a", "content": "7"},
        ],
    }


@pytest.mark.parametrize(
    ("settings", "server", "fields"),
    [
        ({}, None, {}),
        ({}, {"answer_limit": 7}, {"max_tokens": 7}),
        ({"extra": '{"max_completion_tokens": 3}'}, {"answer_limit": 7}, {"max_completion_tokens": 3}),
        ({"extra": '{"max_tokens": 3, "model": "x", "messages": 7}'}, {"answer_limit": 7}, {"max_tokens": 3}),
        ({"extra": '{"temperature": 3}', "temperature": "0.5"}, None, {"temperature": 0.5}),
        ({"stop": "a\n\nb "}, None, {"stop": ["a", "b "]}),
        (
            {"schema": '{"type": "object"}'},
            None,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}},
                }
            },
        ),
    ],
)
def test_settings_become_fields(
    run_script: RunScript, settings: dict[str, str], server: dict[str, int] | None, fields: dict[str, Any]
) -> None:
    script = """
        const { requestBody } = await import("./request.js");
        output = requestBody([], "m", input.settings, input.server);
    """
    body = run_script(script, {"settings": settings, "server": server})
    assert body == {"model": "m", "messages": [], **fields}


def test_extra_fields_must_be_an_object(run_script: RunScript) -> None:
    script = """
        const { parseObject } = await import("./request.js");
        output = input.map((text) => {
          try { return parseObject(text, "It"); } catch (error) { return error.message; }
        });
    """
    empty, good, *wrong = run_script(script, [" ", '{"a": 1}', "[]", "7", "null", "{"])
    assert (empty, good) == (None, {"a": 1})
    assert all(isinstance(words, str) and words.startswith("It") for words in wrong)


@pytest.mark.parametrize("text", ["{", "{}", '["x"]', '[{"function": {}}]', "[null]"])
def test_wrong_tools_are_explained(run_script: RunScript, text: str) -> None:
    script = """
        const { parseTools } = await import("./request.js");
        try { output = parseTools(input); } catch (error) { output = error.message; }
    """
    assert isinstance(run_script(script, text), str)


def exposition(observed: list[float], count: int, running: dict[str, int]) -> str:
    """Metrics as the server's library writes them."""
    registry = CollectorRegistry()
    gauge = Gauge("octavo:num_requests_running", "…", ["model_name"], registry=registry)
    for model, number in running.items():
        gauge.labels(model).set(number)
    Counter("octavo:generation_tokens", "…", ["model_name"], registry=registry).labels('a"b\\c').inc(count)
    histogram = Histogram("octavo:time_to_first_token_seconds", "…", buckets=[0.1, 0.2, 0.4], registry=registry)
    for value in observed:
        histogram.observe(value)
    return generate_latest(registry).decode()


READ_METRICS = """
    const { parseMetrics, sum, rate, meanOf, quantile } = await import("./metrics.js");
    const [before, now] = input.map((text, index) => parseMetrics(text, 10 * index));
    output = {
      running: sum(now, "num_requests_running"),
      missing: sum(now, "nothing") ?? "unknown",
      rate: rate(before, now, "generation_tokens_total"),
      mean: meanOf(before, now, "time_to_first_token_seconds") ?? null,
      half: quantile(before, now, "time_to_first_token_seconds", 0.5) ?? null,
      most: quantile(before, now, "time_to_first_token_seconds", 0.95) ?? null,
    };
"""


def test_figures_come_from_two_readings(run_script: RunScript) -> None:
    before = exposition([0.05, 9.0], 100, {"a": 5})
    now = exposition([0.05, 9.0, 0.15, 0.15, 0.3, 0.3], 350, {"a": 2, 'b, le="1"': 1})
    figures = run_script(READ_METRICS, [before, now])
    assert figures["running"] == 3
    assert figures["missing"] == "unknown"
    assert figures["rate"] == 25
    assert figures["mean"] == pytest.approx(0.225)
    assert figures["half"] == pytest.approx(0.2)
    assert figures["most"] == pytest.approx(0.38)


def test_figures_survive_a_restart_and_an_idle_time(run_script: RunScript) -> None:
    restarted = run_script(READ_METRICS, [exposition([0.3] * 9, 900, {}), exposition([0.15] * 4, 20, {})])
    assert restarted["rate"] == 2
    assert 0.1 < restarted["half"] <= 0.2
    idle = run_script(READ_METRICS, [exposition([0.3], 5, {}), exposition([0.3], 5, {})])
    assert (idle["rate"], idle["mean"], idle["half"]) == (0, None, None)


def test_beyond_the_last_bucket_a_quantile_is_its_bound(run_script: RunScript) -> None:
    figures = run_script(READ_METRICS, [exposition([], 0, {}), exposition([50.0] * 3, 0, {})])
    assert figures["half"] == pytest.approx(0.4)


STORAGE = """
    class Storage {
      items = new Map();
      constructor(quota) { this.quota = quota; }
      get length() { return this.items.size; }
      key(index) { return [...this.items.keys()][index]; }
      getItem(key) { return this.items.get(key) ?? null; }
      removeItem(key) { this.items.delete(key); }
      setItem(key, value) {
        const others = [...this.items].filter(([name]) => name !== key);
        const size = others.reduce((sum, [, text]) => sum + text.length, 0);
        if (size + value.length > this.quota) throw new Error("quota");
        this.items.set(key, value);
      }
    }
    const { ConversationStore, newConversation, titleOf, MAX_CONVERSATIONS } = await import("./store.js");
    const storage = new Storage(input.quota);
    const store = new ConversationStore(storage);
    const say = (content) => ({ ...newConversation(), messages: [{ role: "user", content }] });
    let clock = 0;
    Date.now = () => ++clock;
"""


def test_oldest_conversations_make_room(run_script: RunScript) -> None:
    result = run_script(
        STORAGE
        + """
        const kept = [];
        for (let index = 0; index < MAX_CONVERSATIONS + 5; index += 1) kept.push(store.save(say(`number ${index}`)));
        output = { all: kept.every(Boolean), titles: store.list().map(titleOf), most: MAX_CONVERSATIONS };
        """,
        {"quota": 10**7},
    )
    assert result["all"]
    assert result["titles"] == [f"number {index}" for index in range(result["most"] + 4, 4, -1)]


def test_full_storage_makes_room_or_says_no(run_script: RunScript) -> None:
    result = run_script(
        STORAGE
        + """
        storage.setItem("octavo.chat.broken", "{");
        storage.setItem("foreign", "x");
        for (const text of ["a", "b", "c"]) store.save(say(text.repeat(600)));
        const before = store.list().length;
        const fits = store.save(say("d".repeat(900)));
        const isTooLong = !store.save(say("e".repeat(5000)));
        store.clear();
        output = { before, fits, isTooLong, left: [...storage.items.keys()] };
        """,
        {"quota": 2500},
    )
    assert result == {"before": 3, "fits": True, "isTooLong": True, "left": ["foreign"]}
