"""Tool-call formats by vLLM's names, how plug-ins add theirs, and the meaning of ``auto``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.outputs.parsers.base import Tool, ToolParser
from octavo.outputs.parsers.harmony import HarmonyToolParser
from octavo.outputs.parsers.tools.call_text import BARE_LIST, GRANITE, HERMES, JAMBA, LLAMA_JSON, MISTRAL, CallText
from octavo.outputs.parsers.tools.gemma import FunctionGemmaParser, Gemma4Parser
from octavo.outputs.parsers.tools.glm import GlmParser, HunyuanParser, K2HorizonParser
from octavo.outputs.parsers.tools.json_formats import (
    ApertusParser,
    CohereParser,
    GigaChat3Parser,
    Granite20bFunctionCallingParser,
    GraniteParser,
    HermesParser,
    InklingParser,
    InternLMParser,
    JambaParser,
    LlamaJsonParser,
    LongcatParser,
    Phi4MiniParser,
    XlamParser,
)
from octavo.outputs.parsers.tools.machine import ToolMachine
from octavo.outputs.parsers.tools.minimax_m3 import MiniMaxM3Parser
from octavo.outputs.parsers.tools.named_json import (
    DeepSeekV3Parser,
    DeepSeekV31Parser,
    KimiK2Parser,
    MistralParser,
    Plamo3Parser,
)
from octavo.outputs.parsers.tools.pythonic import Lfm2Parser, Llama4PythonicParser, Olmo3Parser, PythonicParser
from octavo.outputs.parsers.tools.xml_formats import (
    DeepSeekV4Parser,
    DeepSeekV32Parser,
    DeepSeekV41Parser,
    DotsParser,
    KimiK3Parser,
    MiniCpm5Parser,
    MiniMaxM2Parser,
    MuseParser,
    Qwen3CoderParser,
    SeedOssParser,
    Step3Parser,
)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format of calls.

    Attributes:
        parser: makes a parser of one answer from the request's tools.
        models: who writes it, for people.
        start_tags: what a call can begin with, for grammars that leave the text before it free.
        model_types: beginnings of the ``model_type`` of models that write it; they decide where no template does.
        template_marks: what a chat template has that teaches the format: all of one group, of several groups any.
        call_text: how a model is told to write it, where its chat template has no place for tools; None if that is not
            known.
    """

    parser: Callable[[Sequence[Tool]], ToolParser]
    models: str
    start_tags: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    template_marks: tuple[tuple[str, ...], ...] = ()
    call_text: CallText | None = None


def _format(
    parser: type[ToolMachine],
    models: str,
    *template_marks: tuple[str, ...],
    model_types: tuple[str, ...] = (),
    call_text: CallText | None = None,
) -> ToolFormat:
    return ToolFormat(parser, models, parser.start_tags.tags, model_types, template_marks, call_text)


TOOL_FORMATS: dict[str, ToolFormat] = {
    "openai": ToolFormat(
        HarmonyToolParser, "gpt-oss", model_types=("gpt_oss",), template_marks=(("<|channel|>", "<|constrain|>"),)
    ),
    "deepseek_v32": _format(
        DeepSeekV32Parser, "DeepSeek-V3.2", ("<｜DSML｜function_calls>",), model_types=("deepseek_v32",)
    ),
    "deepseek_v41": _format(DeepSeekV41Parser, "DeepSeek-V4.1", ("<｜DSML｜ calls>",), model_types=("deepseek_v41",)),
    "deepseek_v4": _format(DeepSeekV4Parser, "DeepSeek-V4", ("<｜DSML｜tool_calls>",), model_types=("deepseek_v4",)),
    "deepseek_v3": _format(DeepSeekV3Parser, "DeepSeek-V3, DeepSeek-R1", ("<｜tool▁calls▁begin｜>", "```json")),
    "deepseek_v31": _format(DeepSeekV31Parser, "DeepSeek-V3.1", ("<｜tool▁calls▁begin｜>",)),
    "kimi_k2": _format(KimiK2Parser, "Kimi K2", ("<|tool_calls_section_begin|>",), model_types=("kimi_k2",)),
    "minimax_m3": _format(MiniMaxM3Parser, "MiniMax-M3", ("]<]minimax[>[",), model_types=("minimax_m3",)),
    "minimax_m2": _format(MiniMaxM2Parser, "MiniMax-M2", ("<minimax:tool_call>",), model_types=("minimax_m2",)),
    "seed_oss": _format(SeedOssParser, "Seed-OSS", ("<seed:tool_call>",), model_types=("seed_oss",)),
    "step3": _format(Step3Parser, "Step3", ("<steptml:invoke",), model_types=("step3_", "step3v")),
    "qwen3_coder": _format(Qwen3CoderParser, "Qwen3-Coder, Qwen3.5", ("<function=", "<parameter=")),
    "qwen3_xml": _format(Qwen3CoderParser, "Qwen3-Coder, Qwen3.5"),
    "mimo": _format(Qwen3CoderParser, "MiMo", model_types=("mimo",)),
    "step3p5": _format(Qwen3CoderParser, "Step 3.5", model_types=("step3p5",)),
    "step5": _format(Qwen3CoderParser, "Step 5"),
    "hy_v3": _format(HunyuanParser, "Hunyuan 3", ("<tool_calls", "<tool_sep"), model_types=("hy_v3",)),
    "hy_v4": _format(HunyuanParser, "Hunyuan 4", ("<tool_calls", "<arg_key"), model_types=("hy_v4",)),
    "k2_horizon": _format(K2HorizonParser, "K2 Horizon", ("<ifm|tool_call",)),
    "kimi_k3": _format(KimiK3Parser, "Kimi K3", ("<|open|>", "call tool="), model_types=("kimi_k3",)),
    "muse": _format(MuseParser, "Muse", ("<atem:invoke",), model_types=("muse",)),
    "muse_glimmer": _format(MuseParser, "Muse Glimmer"),
    "musespark1x": _format(MuseParser, "Muse Spark"),
    "inkling": _format(InklingParser, "Inkling", ("<|content_invoke_tool_json|>",), model_types=("inkling",)),
    "plamo3": _format(Plamo3Parser, "PLaMo 3", ("<|plamo:begin_tool_request",), model_types=("plamo3",)),
    "cohere_command3": _format(CohereParser, "Command R7B, Command A", ("<|START_ACTION|>",)),
    "cohere_command4": _format(CohereParser, "Command A successors"),
    "apertus": _format(ApertusParser, "Apertus", ("<|tools_prefix|>",), model_types=("apertus",)),
    "dots": _format(DotsParser, "dots", ("<dots_function_call>",)),
    "gemma4": _format(Gemma4Parser, "Gemma 4", ("<|tool_call>",), model_types=("gemma4",)),
    "functiongemma": _format(FunctionGemmaParser, "FunctionGemma", ("<start_function_call>",)),
    "minicpm5": _format(MiniCpm5Parser, "MiniCPM 5", ('<function name="', '<param name="')),
    "glm45": _format(GlmParser, "GLM-4.5, GLM-4.6", ("<arg_key>", "<arg_value>"), model_types=("glm4_moe",)),
    "glm47": _format(GlmParser, "GLM-4.7"),
    "ling3": _format(GlmParser, "Ling 3"),
    "poolside_v1": _format(GlmParser, "Laguna", model_types=("laguna",)),
    "mistral": _format(MistralParser, "Mistral, Magistral, Devstral", ("[TOOL_CALLS]",), call_text=MISTRAL),
    "longcat": _format(LongcatParser, "LongCat-Flash", ("<longcat_tool_call>",), model_types=("longcat",)),
    "internlm": _format(InternLMParser, "InternLM 2, InternLM 2.5", ("<|action_start|>",), model_types=("internlm2",)),
    "hunyuan_a13b": _format(
        JambaParser, "Hunyuan-A13B", ("<tool_calls>",), model_types=("hunyuan_v1_moe",), call_text=JAMBA
    ),
    "jamba": _format(JambaParser, "Jamba 1.5", model_types=("jamba",), call_text=JAMBA),
    "phi4_mini_json": _format(Phi4MiniParser, "Phi-4-mini", ("functools[",), ("<|tool|>", "<|/tool|>")),
    "gigachat3": _format(GigaChat3Parser, "GigaChat 3", ("function call<|role_sep|>",), ("<|function_call|>",)),
    "granite": _format(GraniteParser, "Granite 3", ("<|tool_call|>",), call_text=GRANITE),
    "granite-20b-fc": _format(Granite20bFunctionCallingParser, "Granite-20B-FunctionCalling", ("<function_call>",)),
    "lfm2": _format(Lfm2Parser, "LFM2", ("<|tool_call_start|>",), ("<|tool_list_start|>",), model_types=("lfm2",)),
    "olmo3": _format(Olmo3Parser, "OLMo 3", ("<function_calls>",), model_types=("olmo3",)),
    "llama4_pythonic": _format(Llama4PythonicParser, "Llama 4", ("<|python_start|>",), model_types=("llama4",)),
    "pythonic": _format(
        PythonicParser,
        "Llama 3.2 (small), ToolACE",
        ("[func_name1(params_name1=params_value1",),
        ("[func_name1(param1=value1",),
    ),
    "llama3_json": _format(
        LlamaJsonParser,
        "Llama 3.1, 3.2, 3.3",
        ("<|python_tag|>",),
        ('"parameters": dictionary of argument name',),
        call_text=LLAMA_JSON,
    ),
    "llama4_json": _format(LlamaJsonParser, "Llama 4 with a JSON template", call_text=LLAMA_JSON),
    "xlam": _format(XlamParser, "xLAM", call_text=BARE_LIST),
    "hermes": _format(HermesParser, "Hermes 2 Pro, Hermes 3, Qwen2.5, Qwen3", ("<tool_call>",), call_text=HERMES),
    "qwen3_json": _format(HermesParser, "Qwen3", call_text=HERMES),
    "granite4": _format(HermesParser, "Granite 4", call_text=HERMES),
    "ernie45": _format(HermesParser, "ERNIE 4.5", model_types=("ernie4_5",), call_text=HERMES),
}
"""All formats by name. For ``auto`` the order counts: of formats whose marks a template has, the first is taken."""


def register_tool_format(name: str, tool_format: ToolFormat) -> None:
    """Add a format, or put it in the place of the one of its name.

    Raises:
        ConfigError: it is no :class:`ToolFormat`, or has no name.
    """
    if not name or not isinstance(tool_format, ToolFormat):
        raise ConfigError("A format of calls needs a name and a ToolFormat.")
    TOOL_FORMATS[name] = tool_format


def tool_parser(name: str, tools: Sequence[Tool] = ()) -> ToolParser:
    """A parser of one answer.

    Raises:
        ConfigError: there is no format of this name.
    """
    tool_format = TOOL_FORMATS.get(name)
    if tool_format is None:
        raise ConfigError(f"There is no tool-call parser {name!r}; there are {', '.join(sorted(TOOL_FORMATS))}.")
    return tool_format.parser(tools)


def detect_tools(chat_template: str | None, model_type: str | None, vocab_has: Callable[[str], bool]) -> str | None:
    """The name of the format that a model writes, None if it shows no sign of one.

    The chat template decides, since it is what teaches a model its format; models whose template says nothing are
    known by their type, and Mistral's, which may come without a template, by a token of theirs.
    """
    template = chat_template or ""
    for name, tool_format in TOOL_FORMATS.items():
        if any(all(mark in template for mark in marks) for marks in tool_format.template_marks):
            return name
    kind = (model_type or "").lower()
    for name, tool_format in TOOL_FORMATS.items():
        if kind and kind.startswith(tool_format.model_types):
            return name
    return "mistral" if vocab_has("[TOOL_CALLS]") else None
