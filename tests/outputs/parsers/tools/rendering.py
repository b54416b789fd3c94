"""Calls written by hand in every format, independently of the parsers, and calls to write."""

import json
from dataclasses import dataclass, field

from hypothesis import strategies as st

from octavo.outputs.parsers.base import Tool

TOOLS = [
    Tool(
        name,
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "flag": {"type": "boolean"},
                "items": {"type": "array"},
                "data": {"$ref": "#/$defs/data"},
                "nothing": {"type": ["null", "integer"]},
            },
            "$defs": {"data": {"type": "object"}},
        },
    )
    for name in ("f", "get_weather", "search-web")
]


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def call_object(name, arguments, name_key="name", arguments_key="arguments"):
    return dumps({name_key: name, arguments_key: arguments})


def objects(calls, separator=", ", **keys):
    return separator.join(call_object(name, arguments, **keys) for name, arguments in calls)


def between(start, end, space=""):
    """Each call's object between tags."""

    def render(calls):
        return "\n".join(f"{start}{space}{call_object(*call)}{space}{end}" for call in calls)

    return render


def listed(start, end, **keys):
    """A list of all calls between tags."""
    return lambda calls: f"{start}[{objects(calls, **keys)}]{end}"


def each(write, start="", end="", separator=""):
    """Every call written by ``write``, all between tags."""
    return lambda calls: start + separator.join(write(*call) for call in calls) + end


def bare(value):
    """A value as templates write it between tags: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else dumps(value)


def equals_xml(name, arguments):
    inner = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def qwen(name, arguments):
    return f"<tool_call>\n{equals_xml(name, arguments)}\n</tool_call>"


def attribute_xml(call, argument, end=">", space="\n"):
    """Invocations with names in attributes; ``call`` and ``argument`` are the words of the tags."""

    def write(name, arguments):
        inner = "".join(
            f'<{argument} name="{key}">{bare(value)}</{argument}>{space}' for key, value in arguments.items()
        )
        return f'<{call} name="{name}">{space}{inner}</{call}>'

    return write


def dsml(mark):
    def write(name, arguments):
        inner = "".join(
            f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{bare(value)}'
            f"</{mark}parameter>\n"
            for key, value in arguments.items()
        )
        return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>\n'

    return write


def key_values(prefix="", suffix="", space="", separator="", typed=False):
    def tag(word):
        return f"<{prefix}{word}{suffix}>"

    def end(word):
        return f"</{prefix}{word}{suffix}>"

    def write(name, arguments):
        inner = "".join(
            f"{space}{tag('arg_key')}{key}{end('arg_key')}{space}"
            + (f"{tag('arg_type')}{json_type(value)}{end('arg_type')}" if typed else "")
            + f"{tag('arg_value')}{bare(value)}{end('arg_value')}"
            for key, value in arguments.items()
        )
        return f"{tag('tool_call')}{name}{separator}{inner}{space}{end('tool_call')}"

    return write


def json_type(value):
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def kimi_k3(name, arguments):
    inner = "".join(
        f'<|open|>argument key="{key}" type="{json_type(value)}"<|sep|>{bare(value)}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


def python_call(name, arguments, write=repr):
    return f"{name}({', '.join(f'{key}={write(value)}' for key, value in arguments.items())})"


def gemma(delimiter):
    def value_text(value):
        if isinstance(value, str):
            return f"{delimiter}{value}{delimiter}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{value_text(key)}:{value_text(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(value_text, value)) + "]"
        return dumps(value)

    def write(name, arguments):
        return f"call:{name}{{{','.join(f'{key}:{value_text(value)}' for key, value in arguments.items())}}}"

    return write


def apertus(calls):
    return "<|tools_prefix|>[" + ", ".join(dumps({name: arguments}) for name, arguments in calls) + "]<|tools_suffix|>"


def kimi_k2(calls):
    return (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
            for index, (name, arguments) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    )


def plamo3(name, arguments):
    return (
        f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{dumps(arguments)}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    )


@dataclass(frozen=True)
class Rendering:
    """How calls are written in a format.

    Attributes:
        name: of the format.
        render: writes calls, each a name and its arguments.
        reserved: what strings cannot hold, because it would end them.
        allows_text_before: text may stand before the calls.
    """

    name: str
    render: object
    reserved: tuple = ()
    allows_text_before: bool = True
    extra_pieces: tuple = field(default=())


_DSML_END = ("</｜DSML｜",)
_ARG_END = ("</arg_value>",)
_K3_ENDS = ("<|close|>", "<|end_of_msg|>")
_DS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_QWEN_ENDS = ("</parameter>", "\n<parameter=", "\n</function>")

RENDERINGS = [
    Rendering("hermes", between("<tool_call>", "</tool_call>", "\n")),
    Rendering("qwen3_json", between("<tool_call>", "</tool_call>")),
    Rendering("granite4", between("<tool_call>", "</tool_call>", "\n")),
    Rendering("ernie45", between("<tool_call>", "</tool_call>", "\n")),
    Rendering("longcat", between("<longcat_tool_call>", "</longcat_tool_call>")),
    Rendering("jamba", listed("<tool_calls>", "</tool_calls>")),
    Rendering("hunyuan_a13b", listed("<tool_calls>", "</tool_calls>")),
    Rendering(
        "internlm",
        lambda calls: "\n".join(
            f"<|action_start|><|plugin|>\n{call_object(*call, arguments_key='parameters')}\n<|action_end|>"
            for call in calls
        ),
    ),
    Rendering("granite", listed("<|tool_call|>", "")),
    Rendering("granite-20b-fc", between("<function_call> ", "")),
    Rendering("phi4_mini_json", listed("functools", "")),
    Rendering("gigachat3", between("function call<|role_sep|>\n", "")),
    Rendering("cohere_command3", listed("<|START_ACTION|>", "<|END_ACTION|>", name_key="tool_name")),
    Rendering("cohere_command4", listed("<|START_ACTION|>", "<|END_ACTION|>", arguments_key="parameters")),
    Rendering(
        "inkling",
        lambda calls: "".join(
            f"<|content_invoke_tool_json|>{call_object(*call, arguments_key='args')}<|end_message|>" for call in calls
        ),
    ),
    Rendering("apertus", apertus),
    Rendering("mistral", listed("[TOOL_CALLS] ", "")),
    Rendering(
        "mistral", each(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}"), extra_pieces=("[ARGS]",)
    ),
    Rendering("mistral", each(lambda name, arguments: f"[TOOL_CALLS]{name}{dumps(arguments)}")),
    Rendering(
        "deepseek_v3",
        each(
            lambda name, arguments: (
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>"
            ),
            *_DS,
            "\n",
        ),
        extra_pieces=("```json", "```", "<｜tool▁sep｜>"),
    ),
    Rendering(
        "deepseek_v31",
        each(
            lambda name, arguments: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>",
            *_DS,
        ),
        extra_pieces=("<｜tool▁sep｜>",),
    ),
    Rendering("kimi_k2", kimi_k2, extra_pieces=("functions.f:0", "<|tool_call_argument_begin|>")),
    Rendering(
        "plamo3", each(plamo3, "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|><|plamo:tag|>")
    ),
    Rendering("llama3_json", lambda calls: objects(calls, "; ", arguments_key="parameters"), allows_text_before=False),
    Rendering("llama4_json", lambda calls: "<|python_tag|>" + objects(calls, ";", arguments_key="parameters")),
    Rendering("xlam", listed("", "")),
    Rendering("xlam", listed("```json\n", "\n```")),
    Rendering("xlam", listed("<tool_call>", "</tool_call>")),
    Rendering("qwen3_coder", each(qwen, separator="\n"), _QWEN_ENDS, extra_pieces=("<function=f>", "<parameter=text>")),
    Rendering("qwen3_xml", each(qwen), _QWEN_ENDS),
    Rendering("mimo", each(qwen), _QWEN_ENDS),
    Rendering("step3p5", each(qwen, separator="\n"), _QWEN_ENDS),
    Rendering("step5", each(qwen, separator="\n"), _QWEN_ENDS),
    Rendering("seed_oss", each(equals_xml, "<seed:tool_call>\n", "\n</seed:tool_call>", "\n"), _QWEN_ENDS),
    Rendering(
        "minimax_m2",
        each(attribute_xml("invoke", "parameter"), "<minimax:tool_call>\n", "\n</minimax:tool_call>", "\n"),
        ("</parameter>",),
        extra_pieces=('<invoke name="f">', '<parameter name="text">'),
    ),
    Rendering(
        "dots",
        each(attribute_xml("invoke", "parameter"), "<dots_function_call>\n", "\n</dots_function_call>"),
        ("</parameter>",),
    ),
    Rendering("dots", between("<dots_function_call>", "</dots_function_call>", "\n")),
    Rendering("minicpm5", each(attribute_xml("function", "param", space="")), ("</param>", "<![CDATA[")),
    Rendering(
        "muse",
        each(
            attribute_xml("atem:invoke", "atem:parameter"),
            "to=f<|message|><atem:function_calls>",
            "</atem:function_calls><|eom|>",
        ),
        ("</atem:parameter>",),
    ),
    Rendering(
        "deepseek_v32",
        each(dsml("｜DSML｜"), "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
        ("</｜DSML｜",),
    ),
    Rendering(
        "deepseek_v4", each(dsml("｜DSML｜"), "<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"), ("</｜DSML｜",)
    ),
    Rendering(
        "step3",
        lambda calls: (
            "<｜tool_calls_begin｜>"
            + "".join(
                "<｜tool_call_begin｜>function<｜tool_sep｜>"
                + attribute_xml("steptml:invoke", "steptml:parameter")(*call)
                + "<｜tool_call_end｜>\n"
                for call in calls
            )
            + "<｜tool_calls_end｜>"
        ),
        ("</steptml:parameter>",),
    ),
    Rendering("glm45", each(key_values(space="\n")), _ARG_END, extra_pieces=("<arg_key>text</arg_key>",)),
    Rendering("glm47", each(key_values()), _ARG_END),
    Rendering("ling3", each(key_values(space="\n"), separator="\n"), _ARG_END),
    Rendering("poolside_v1", each(key_values(space="\n")), _ARG_END),
    Rendering(
        "hy_v3",
        each(key_values(space="\n", separator="<tool_sep>"), "<tool_calls>", "</tool_calls>"),
        _ARG_END,
    ),
    Rendering(
        "hy_v4",
        each(key_values(suffix=":6124c78e"), "<tool_calls:6124c78e>\n", "\n</tool_calls:6124c78e>", "\n"),
        ("</arg_value",),
    ),
    Rendering(
        "k2_horizon",
        each(key_values("ifm|", typed=True), "<ifm|tool_calls>", "</ifm|tool_calls>"),
        ("</ifm|arg_value>",),
    ),
    Rendering(
        "k2_horizon",
        lambda calls: f"<ifm|tool_calls>{between('<ifm|tool_call>', '</ifm|tool_call>')(calls)}</ifm|tool_calls>",
    ),
    Rendering(
        "kimi_k3", each(kimi_k3, "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), ("<|close|>", "<|end_of_msg|>")
    ),
    Rendering("pythonic", each(python_call, "[", "]", ", "), allows_text_before=False),
    Rendering("llama4_pythonic", each(python_call, "<|python_start|>[", "]<|python_end|>", ", ")),
    Rendering("llama4_pythonic", each(python_call, "[", "]", ", "), allows_text_before=False),
    Rendering("lfm2", each(python_call, "<|tool_call_start|>[", "]<|tool_call_end|>", ", ")),
    Rendering(
        "olmo3",
        each(
            lambda name, arguments: python_call(name, arguments, dumps), "<function_calls>", "</function_calls>", "\n"
        ),
    ),
    Rendering(
        "gemma4",
        each(lambda *call: "<|tool_call>" + gemma('<|"|>')(*call) + "<tool_call|>"),
        ('<|"|>',),
    ),
    Rendering(
        "functiongemma",
        lambda calls: "".join(f"<start_function_call>{gemma('<escape>')(*call)}<end_function_call>" for call in calls),
        ("<escape>",),
    ),
]

_PIECES = [
    *"{}[]()<>\"'\\,:;= \n\té界😀_a1`|",
    "</tool_call>",
    "<tool_call>",
    "</parameter>",
    "]</tool_calls>",
    '{"name": "f"}',
    "</arg_value>",
    "null",
    "<|end|>",
    "\\u0041",
    "'''",
    '"""',
    "\x00",
    "\u2028",
]


def _strings():
    return st.lists(st.sampled_from(_PIECES), max_size=8).map("".join)


def _values():
    leaves = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e9, 1e9) | _strings()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_strings(), inner, max_size=3),
        max_leaves=6,
    )


def argument_sets():
    return st.fixed_dictionaries(
        {},
        optional={
            "text": _strings(),
            "count": st.integers(-(10**15), 10**15),
            "ratio": st.floats(-1e12, 1e12),
            "flag": st.booleans(),
            "items": st.lists(_values(), max_size=3),
            "data": st.dictionaries(_strings(), _values(), max_size=3),
            "nothing": st.none() | st.integers(0, 9),
        },
    )


def call_lists():
    return st.lists(st.tuples(st.sampled_from([tool.name for tool in TOOLS]), argument_sets()), min_size=1, max_size=3)


def without(value, reserved):
    """The value with what its format cannot express left out."""
    if isinstance(value, str):
        # Leaving something out may bring the halves of something else together.
        while any(tag in value for tag in reserved):
            for tag in reserved:
                value = value.replace(tag, "")
        return value
    if isinstance(value, list):
        return [without(item, reserved) for item in value]
    if isinstance(value, dict):
        return {without(key, reserved): without(item, reserved) for key, item in value.items()}
    return value
