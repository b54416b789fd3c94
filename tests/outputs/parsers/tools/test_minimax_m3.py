import json

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.base import ContentText, Tool, ToolCallArguments, ToolCallBegin
from octavo.outputs.parsers.tools.registry import tool_parser
from tests.outputs.parsers.cuts import check_cuts, places
from tests.outputs.parsers.tools.rendering import dumps
from tests.outputs.parsers.tools.test_formats import calls_of, content_of

ORDER = Tool(
    "order",
    {
        "properties": {
            "user": {"type": "integer"},
            "note": {"type": "string"},
            "ship": {"$ref": "#/$defs/ship"},
            "lines": {
                "type": "array",
                "items": {"properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}}},
            },
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "$defs": {"ship": {"type": "object", "properties": {"zip": {"type": "integer"}, "city": {"type": "string"}}}},
    },
)
WORDS = st.text('ab<>/ 1é\n"\\]', max_size=8)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "user": st.integers(0, 10**6),
        "note": WORDS,
        "ship": st.fixed_dictionaries({"zip": st.integers(0, 99999)}, optional={"city": WORDS}),
        "lines": st.lists(st.fixed_dictionaries({"sku": WORDS, "qty": st.integers(0, 9)}), max_size=3),
        "tags": st.dictionaries(st.sampled_from(["k", "l", "m"]), WORDS, max_size=3),
    },
)


def element(name, value):
    if isinstance(value, dict):
        inner = "".join(element(key, item) for key, item in value.items())
    elif isinstance(value, list):
        inner = "".join(element("item", item) for item in value)
    else:
        inner = value if isinstance(value, str) else dumps(value)
    return f"]<]minimax[>[<{name}>{inner}]<]minimax[>[</{name}>"


def invoke(arguments):
    inner = "".join(element(name, value) for name, value in arguments.items())
    return f']<]minimax[>[<invoke name="order">{inner}]<]minimax[>[</invoke>'


def render(*calls):
    inner = "\n".join(map(invoke, calls))
    return f"]<]minimax[>[<tool_call>\n{inner}\n]<]minimax[>[</tool_call>"


def start():
    return tool_parser("minimax_m3", [ORDER])


@settings(max_examples=40)
@given(calls=st.lists(ARGUMENTS, min_size=1, max_size=2), cuts=places())
def test_calls_come_back_as_they_were_written(calls, cuts):
    parts = check_cuts(start, f"Yes.\n{render(*calls)}", cuts)
    assert [json.loads(text) for _, text in calls_of(parts)] == calls
    assert content_of(parts) == "Yes."


@settings(max_examples=40)
@given(arguments=ARGUMENTS, place=st.integers(0, 400), cuts=places())
def test_answers_that_break_off_are_read_alike_in_all_cuts(arguments, place, cuts):
    check_cuts(start, render(arguments)[:place], cuts)


def test_names_that_come_again_and_text_between_elements():
    text = ']<]minimax[>[<invoke name="f">' + element("x", "").replace(
        "]<]minimax[>[</x>", f"so{element('a', '1')}{element('a', '2')}]<]minimax[>[</x>"
    )
    _, call = check_cuts(start, text + "]<]minimax[>[</invoke>", [40])
    assert json.loads(call.text) == {"x": {"$text": "so", "a": ["1", "2"]}}


def test_what_does_not_nest_is_passed_on_as_it_is():
    text = ']<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</b>'
    assert check_cuts(start, text, [30, 50]) == [
        ToolCallBegin(0, "f"),
        ToolCallArguments(0, "]<]minimax[>[<a>1]<]minimax[>[</b>"),
    ]
    assert check_cuts(start, "]<]minimax[>[<tool_call> no", [5]) == [ContentText("]<]minimax[>[<tool_call> no")]
