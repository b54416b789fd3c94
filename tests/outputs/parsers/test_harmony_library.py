"""The machine says of a Harmony answer what the reference library says."""

import json
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.base import ContentText, ReasoningText, ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.harmony import HarmonyMachine
from tests.outputs.parsers.cuts import cut, joined, places

NEEDED = (
    "needs the package openai-harmony, and TIKTOKEN_ENCODINGS_BASE naming a folder with o200k_base.tiktoken "
    "(openaipublic.blob.core.windows.net/encodings); ran on 2 CPU cores with openai-harmony 0.0.8"
)
# The library fetches its vocabulary if it is not told where one lies.
if not (
    os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    and Path(os.environ["TIKTOKEN_ENCODINGS_BASE"], "o200k_base.tiktoken").is_file()
):
    pytest.skip(NEEDED, allow_module_level=True)
harmony = pytest.importorskip("openai_harmony", reason=NEEDED)

START = "<|start|>assistant"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
# Tags that mean something within a body: the library knows the first three, the machine all of them.
BODY_TAGS = (*ENDS, "<|start|>", "<|channel|>")
READERS = (None, "user", "assistant", "all")


@dataclass
class Said:
    """A message as the library reads it; ``num_known`` characters of its content stand in the prompt."""

    channel: str | None
    recipient: str | None
    content: str
    is_open: bool = False
    num_known: int = 0


@cache
def encoding():
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def encoded(text):
    return encoding().encode(text, allowed_special="all")


def decoded(tokens):
    """The text of tokens, without a character that is not whole."""
    return encoding().decode(tokens, errors="ignore")


def read(tokens, role=harmony.Role.ASSISTANT, *, is_strict=True):
    """A parser of the library that has read these tokens."""
    parser = harmony.StreamableParser(encoding(), role, strict=is_strict)
    for token in tokens:
        parser.process(token)
    return parser


def said(parser):
    """The assistant's messages, the last of which may go on."""
    messages = [
        Said(message.channel, recipient(message.recipient), message.content[0].text)
        for message in parser.messages
        if message.author.role is harmony.Role.ASSISTANT
    ]
    if parser.state is harmony.StreamState.CONTENT and parser.current_role is harmony.Role.ASSISTANT:
        addressed_to = recipient(parser.current_recipient)
        messages.append(Said(parser.current_channel, addressed_to, parser.current_content, is_open=True))
    return messages


def recipient(word):
    """Version 0.0.8 takes a content type without a recipient for one; later ones do not."""
    return None if word is not None and word.startswith("<|constrain|>") else word


def parts_of(messages):
    """What the product makes of messages: see docs/reasoning-and-tools.md."""
    parts, num_calls, seen = [], 0, set()
    for message in messages:
        text = message.content[message.num_known :]
        if message.recipient in READERS:
            kind = ReasoningText if message.channel == "analysis" else ContentText
            if text:
                parts.append(kind("\n" + text if kind in seen else text))
                seen.add(kind)
            continue
        name = message.recipient.removeprefix("functions.")
        parts.append(ToolCallBegin(num_calls, name))
        parts.append(ToolCallArguments(num_calls, arguments(message, text)))
        num_calls += 1
    return joined(parts)


def arguments(message, text):
    if message.recipient == "python":
        opening = "" if message.num_known or (message.is_open and not text) else '{"code": "'
        return opening + json.dumps(text, ensure_ascii=False)[1:-1] + ("" if message.is_open else '"}')
    if not message.content[: message.num_known].strip():
        text = text.lstrip()
    return text or ("" if message.is_open or message.num_known else "{}")


def parts_from(text, cuts=(), prompt=START, *, is_whole=False):
    """What the machine says; however the text is cut, it says the same."""
    said_by_cuts = []
    for pieces in ([text], list(text), cut(text, cuts)):
        machine = HarmonyMachine(prompt)
        parts = [part for piece in pieces for part in machine.parse_delta(piece)]
        said_by_cuts.append(joined(parts + machine.flush(is_whole)))
    assert said_by_cuts[0] == said_by_cuts[1] == said_by_cuts[2]
    return said_by_cuts[0]


PIECES = [
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>json", START, *ENDS, "<|", "{}", "A", "\n", " "),
    *("analysis", "final", "commentary", " json", " python", " to=functions.f", " functions.f", " to=user"),
    *("<|start|>user", "<|start|>functions.f to=assistant", "<|channel|>final<|message|>", "<|message|>A"),
]
near_tags = [
    "<",
    "<|",
    "|>",
    "<|e",
    "<|end",
    "<|end|",
    "<|chan",
    "|start|>",
    "<|message|>",
    "<|constrain|>",
    "to=user ",
]
bodies = st.lists(
    st.one_of(st.text(max_size=6), st.text('ab {"\\\n\té日\U0001f600', max_size=8), st.sampled_from(near_tags)),
    max_size=5,
).map("".join)
bodies = bodies.map(lambda text: text.encode("utf-8", "ignore").decode())
bodies = bodies.filter(lambda body: not any(tag in body for tag in (*BODY_TAGS, "<|endoftext|>")))
values = st.recursive(
    st.one_of(st.integers(), st.booleans(), bodies),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(bodies, inner, max_size=3)),
    max_leaves=4,
)
objects = st.dictionaries(bodies, values, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
tool_names = st.one_of(
    st.from_regex(r"functions\.[A-Za-z0-9_.-]{1,20}", fullmatch=True),
    st.sampled_from(["browser.search", "browser.open", "python", "container.exec", "functions.été", "mcp.files:read"]),
)
recipients = st.one_of(tool_names, tool_names, st.sampled_from(["user", "assistant", "all"]))
with_type = st.sampled_from(["", " <|constrain|>json", "<|constrain|>json", " json", " code"])
without_recipient = st.sampled_from(["", "", " <|constrain|>json", "<|constrain|>json"])


@st.composite
def messages(draw):
    """A message as the model may write it, from behind ``<|start|>assistant`` to its end."""
    channel = "<|channel|>" + draw(st.sampled_from(["analysis", "commentary", "final"]))
    if draw(st.booleans()):
        recipient = " to=" + draw(recipients)
        kind = draw(with_type)
        header = draw(
            st.sampled_from(
                [
                    recipient + channel + kind,
                    channel + recipient + kind,
                    recipient + kind,
                    " " + channel + recipient + kind,
                ]
            )
        )
    else:
        header = draw(st.sampled_from([channel, channel, " " + channel, ""])) + draw(without_recipient)
    body = draw(st.one_of(bodies, objects))
    return f"{header}<|message|>{body}{draw(st.sampled_from(ENDS))}"


answers = st.lists(messages(), min_size=1, max_size=4).map(START.join)


@settings(max_examples=300)
@given(answers, places())
def test_whole_answers_mean_what_the_library_says(text, cuts):
    tokens = encoded(text)
    raw = encoding().parse_messages_from_completion_tokens(tokens, harmony.Role.ASSISTANT)
    expected = parts_of(said(read(tokens)))
    assert len(raw) == text.count(START) + 1
    assert [message.content[0].text for message in raw] == [message.content for message in said(read(tokens))]
    assert parts_from(text, cuts) == expected
    # The token that ends an answer is left out of its text.
    without_end = text[: text.rindex("<|")]
    assert parts_from(without_end, cuts, is_whole=True) == expected


@settings(max_examples=300)
@given(answers, st.data())
def test_answers_that_break_off_mean_what_the_library_says(text, data):
    tokens = encoded(text)
    end = data.draw(st.integers(0, len(tokens)), label="end")
    expected = parts_of(said(read(tokens[:end])))
    assert parts_from(decoded(tokens[:end]), data.draw(places(), label="cuts")) == expected


@settings(max_examples=100)
@given(answers)
def test_no_token_is_late_but_by_the_beginning_of_a_tag(text):
    tokens = encoded(text)
    theirs, machine, parts = harmony.StreamableParser(encoding(), harmony.Role.ASSISTANT), HarmonyMachine(START), []
    for end, token in enumerate(tokens, 1):
        theirs.process(token)
        before = decoded(tokens[: end - 1])
        parts += machine.parse_delta(decoded(tokens[:end])[len(before) :])
        expected, given_out = parts_of(said(theirs)), joined(parts)
        if given_out == expected:
            continue
        assert len(expected) - len(given_out) in (0, 1)
        late = spelled(expected)[len(spelled(given_out)) :]
        assert spelled(expected) == spelled(given_out) + late
        assert any(tag.startswith(late.strip("\n")) for tag in BODY_TAGS) or late.startswith('{"code": "<')


@settings(max_examples=200)
@given(
    st.lists(st.tuples(messages(), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)), min_size=1, max_size=3)
)
def test_tags_of_ordinary_tokens_are_text(answer):
    """Where tags are known by their tokens, bodies that spell tags out come back as they are."""
    tokens = []
    for number, (message, body) in enumerate(answer):
        head, tag, end = message.partition("<|message|>")[0], "<|message|>", message[message.rindex("<|") :]
        tokens += encoded((START if number else "") + head + tag)
        tokens += [token for piece in re.split("(?<=<)", body) for token in encoding().encode(piece)]
        tokens += encoded(end)
    machine, parts, before = HarmonyMachine(START), [], ""
    for count, token in enumerate(tokens, 1):
        text = decoded(tokens[:count])
        marks = [(0, text[len(before) :])] if encoding().is_special_token(token) else []
        parts += machine.parse_delta(text[len(before) :], marks)
        before = text
    assert joined(parts + machine.flush()) == parts_of(said(read(tokens)))


def spelled(parts):
    """Everything that parts say, as one text."""
    return "".join(part.name if isinstance(part, ToolCallBegin) else part.text for part in parts)


@settings(max_examples=300)
@given(answers, st.data(), st.sampled_from(["", "<|start|>user<|message|>Hi<|end|>"]))
def test_the_answer_goes_on_wherever_the_prompt_ends(text, data, before):
    tokens = encoded(START + text)
    end = data.draw(st.integers(0, len(tokens)), label="end")
    prompt = decoded(tokens[:end])
    assume(encoded(prompt) == tokens[:end])  # no character is cut
    in_prompt = read(tokens[:end], role=None)
    known = said(in_prompt)
    messages = said(read(tokens, role=None))
    goes_on = known[-1:] if known and known[-1].is_open else []
    messages = messages[len(known) - len(goes_on) :]
    for message in goes_on:
        messages[0].num_known = len(message.content)
    assert parts_from(decoded(tokens)[len(prompt) :], prompt=before + prompt) == parts_of(messages)


# What the library refuses, or reads as a part of a body, and the machine recovers from. Expected is what the machine
# says: the answer has been sent in part by the time that its text turns out to be malformed, so an error helps nobody,
# and tags in a reader's text do not either.
RECOVERED = [
    # A header begins within a body: the model forgot to end it. To the library all of it is one body.
    (
        f"<|channel|>analysis<|message|>A{START}<|channel|>final<|message|>B",
        f"A{START}<|channel|>final<|message|>B",
        [ReasoningText("A"), ContentText("B")],
    ),
    (
        "<|channel|>analysis<|message|>A<|channel|>final<|message|>B",
        "A<|channel|>final<|message|>B",
        [ReasoningText("A"), ContentText("B")],
    ),
    # No start tag between two messages.
    (
        "<|channel|>analysis<|message|>A<|end|>assistant<|channel|>final<|message|>B",
        None,
        [ReasoningText("A"), ContentText("B")],
    ),
    ("<|channel|>analysis<|message|>A<|end|>B", None, [ReasoningText("A"), ContentText("B")]),
    ("<|channel|>final<|message|>A<|end|><|end|>", None, [ContentText("A")]),
    # More in a header than it should hold, or less.
    (
        "<|channel|>commentary to=functions.f <|constrain|> json<|message|>{}",
        None,
        [ToolCallBegin(0, "f"), ToolCallArguments(0, "{}")],
    ),
    (
        "<|channel|>commentary <|constrain|>json to=functions.f<|message|>{}",
        None,
        [ToolCallBegin(0, "f"), ToolCallArguments(0, "{}")],
    ),
    ("<|channel|> analysis<|message|>A", None, [ReasoningText("A")]),
    ("<|channel|><|message|>A", None, [ContentText("A")]),
    ("so it is<|message|>A", None, [ContentText("A")]),
    (f"<|channel|>final<|message|>A<|end|>{START}:me<|channel|>final<|message|>B", None, [ContentText("A\nB")]),
    (
        "<|channel|>final<|message|>A<|end|><|start|>functions.f<|channel|>commentary<|message|>{}",
        None,
        [ContentText("A")],
    ),
    # No header at all.
    ("A", None, [ContentText("A")]),
]


@pytest.mark.parametrize(("text", "content", "expected"), RECOVERED)
def test_malformed_answers_are_recovered_where_the_library_gives_up(text, content, expected):
    if content is None:
        with pytest.raises(harmony.HarmonyError):
            read(encoded(text)).process_eos()
    else:
        assert [message.content for message in said(read(encoded(text)))] == [content]
    assert parts_from(text) == expected


@pytest.mark.parametrize(
    ("text", "addressed_to", "expected"),
    [
        # Two tags of a channel: the last one counts; the library makes the second one a recipient.
        ("<|channel|>analysis<|channel|>final<|message|>A", "<|channel|>final", [ContentText("A")]),
        # A lone word that is no tool's name is a content type, and no recipient.
        ("<|channel|>final json<|message|>{}", "json", [ContentText("{}")]),
        ("<|channel|>analysis code<|message|>A", "code", [ReasoningText("A")]),
        # The name behind a space is the recipient; the library makes it a content type.
        ("<|channel|>commentary to= functions.f<|message|>{}", "", [ToolCallBegin(0, "f"), ToolCallArguments(0, "{}")]),
    ],
)
def test_recipients_are_not_made_of_other_words(text, addressed_to, expected):
    assert [message.recipient for message in said(read(encoded(text)))] == [addressed_to]
    assert parts_from(text) == expected


@pytest.mark.parametrize("kind", ["", " <|constrain|>json", " json"])
@pytest.mark.parametrize("name", ["functions.f", "browser.search", "container.exec"])
def test_a_tools_name_alone_is_the_recipient(name, kind):
    """The library takes any word for one; a word that is no tool's name stays a content type."""
    text = f"<|channel|>commentary {name}{kind}<|message|>{{}}<|call|>"
    assert parts_from(text) == parts_of(said(read(encoded(text))))


@pytest.mark.parametrize(
    "text",
    [
        "A<|return|>",
        "A b c<|end|>",
        "<|channel|>final A b<|return|>",
        "<|channel|>analysis A b<|end|>",
        "<|channel|>analysis<|end|>",
        f"<|channel|>analysis A{{b<|end|>{START}<|channel|>final<|message|>B<|return|>",
        f"A<|end|>{START}<|channel|>final<|message|>B<|return|>",
    ],
)
def test_a_forgotten_message_tag_loses_nothing(text):
    """As the library has it if it is not strict; strict, it refuses the answer or takes all of it for a header."""
    expected = parts_of(said(read(encoded(text), is_strict=False)))
    assert parts_from(text) == expected
    if text.endswith("<|return|>"):
        assert parts_from(text.removesuffix("<|return|>"), is_whole=True) == expected


def test_a_call_without_a_message_tag_is_a_call():
    """The library makes a text of it, the recipient included, which is of no use to anybody."""
    call = [ToolCallBegin(0, "f"), ToolCallArguments(0, '{"a": 1}')]
    for kind in ("", "json", "<|constrain|>json"):
        text = f'<|channel|>commentary to=functions.f {kind} {{"a": 1}}'
        assert parts_from(text + "<|call|>") == parts_from(text, is_whole=True) == call
        assert parts_from(text) == []
    assert parts_from("<|channel|>commentary to=functions.f<|call|>") == []


noise = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
noisy_answers = st.tuples(answers, st.integers(0, 80), noise).map(lambda it: inserted(*it))


def inserted(answer, num_tokens, text):
    tokens = encoded(answer)
    return decoded(tokens[:num_tokens]) + text + decoded(tokens[num_tokens:])


@settings(max_examples=400)
@given(st.one_of(noise, noisy_answers, noisy_answers), places(), st.booleans())
def test_whatever_the_library_takes_means_the_same(text, cuts, is_whole):
    """Any sequence of tags and words is read, and what the library reads as messages means the same."""
    parts = parts_from(text, cuts, is_whole=is_whole)
    theirs = plainly_read(text)
    if theirs is not None:
        if is_whole:
            theirs.process_eos()
        assert parts == parts_of(said(theirs))


# A start without a role, a channel behind which more than a header may hold stands, a content type before other words.
NOT_PLAIN = re.compile(
    r"<\|start\|>(?!(?:assistant|user|functions\.f to=assistant)(?:\s|<\|[cm]|$))"
    r"|<\|channel\|>(?![^<]*(?:<\|constrain\|>json)?<\|message\|>)"
    r"|<\|constrain\|>(?!json<\|message\|>)"
)
TOOL = re.compile(r"(?:functions|browser|container|mcp)\.[\w.:-]+|python")


def plainly_read(text):
    """The library's parser that has read the text; None if one of the recoveries above is at work."""
    if NOT_PLAIN.search(text):
        return None
    parser = harmony.StreamableParser(encoding(), harmony.Role.ASSISTANT)
    for token in encoded(text):
        # To the library a header goes on to the next message tag, whatever stands there.
        if parser.state is harmony.StreamState.HEADER and decoded([token]) in ("<|start|>", *ENDS):
            return None
        try:
            parser.process(token)
        except harmony.HarmonyError:
            return None
    is_plain = parser.state is not harmony.StreamState.HEADER and all(
        message.channel in (None, "analysis", "commentary", "final")
        and (message.recipient in READERS or TOOL.fullmatch(message.recipient))
        and not any(tag in message.content for tag in BODY_TAGS)
        for message in said(parser)
    )
    return parser if is_plain else None
