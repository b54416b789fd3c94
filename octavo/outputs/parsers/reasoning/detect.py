"""Detect a model's reasoning format from its chat template, vocabulary and type."""

from collections.abc import Callable

# Marks in a template that no other family has. The first that is found decides.
_MARKS: tuple[tuple[str, str], ...] = (
    ("<|channel|>analysis", "openai_gptoss"),
    ("<|content_thinking|>", "inkling"),
    ("<|open|>think<|sep|>", "kimi_k3"),
    ("<seed:think>", "seed_oss"),
    ("<mm:think>", "minimax_m3"),
    ("<|START_THINKING|>", "cohere_command3"),
    ("<|plamo:begin_think:plamo|>", "plamo3"),
    ("<ifm|think", "k2_horizon"),
    ("<|channel>", "gemma4"),
    ("to=self", "muse_glimmer"),
    ("[THINK]", "mistral"),
    ("Here is my thought process", "granite"),
    ("<think:opensource>", "hy_v3"),
)
# Templates that speak of <think>, by what the type of the model begins with.
_THINK_TYPES: tuple[tuple[str, str], ...] = (
    ("qwen3", "qwen3"),
    ("glm", "glm45"),
    ("minimax_m3", "minimax_m3"),
    ("minimax", "minimax_m2"),
    ("ernie4_5", "ernie45"),
    ("hunyuan", "hunyuan_a13b"),
    ("hy_v4", "hy_v4"),
    ("hy_v3", "hy_v3"),
    ("kimi", "kimi_k2"),
    ("nemotron", "nemotron_v3"),
    ("olmo", "olmo3"),
    ("step3p5", "step3p5"),
    ("step3", "step3"),
    ("mimo", "mimo"),
    ("minicpmv", "minicpmv"),
    ("bailing", "ling3"),
    ("laguna", "poolside_v1"),
    ("granitemoehybrid", "granite_thinking_parser"),
    ("granite", "granite"),
    ("deepseek_v4", "deepseek_v4"),
)
# The same by marks, for servers that know the template only.
_THINK_MARKS: tuple[tuple[str, str], ...] = (
    ("[gMASK]", "glm45"),
    ("<|start_of_role|>", "granite"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("]~b]", "minimax_m2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<answer>", "hunyuan_a13b"),
    ("<role>", "ling3"),
    ("<response>", "ernie45"),
)
_DEEPSEEK_TURN = "<｜Assistant｜>"


def detect_reasoning(chat_template: str | None, model_type: str | None, vocab_has: Callable[[str], bool]) -> str | None:
    """The name of the format, None if the model shows no sign of reasoning."""
    template, model_type = chat_template or "", (model_type or "").lower()
    if model_type == "gpt_oss":
        return "openai_gptoss"
    for mark, name in _MARKS:
        if mark in template:
            return _variant(name, template, model_type)
    if vocab_has("[THINK]") and (vocab_has("[INST]") or model_type.startswith("mistral")):
        return "mistral"
    if "</think>" not in template:
        return None
    if _DEEPSEEK_TURN in template:
        return "deepseek_v3" if "thinking" in template else "deepseek_r1"
    for beginning, name in _THINK_TYPES:
        if model_type.startswith(beginning):
            return name
    for mark, name in _THINK_MARKS:
        if mark in template:
            return name
    # Of most of the rest, the template or else the model writes the start tag; some answer without reasoning.
    return "think"


def _variant(name: str, template: str, model_type: str) -> str:
    if name == "cohere_command3" and "<|START_TEXT|>" in template:
        return "cohere_command4"
    if name == "hy_v3" and model_type.startswith("hy_v4"):
        return "hy_v4"
    return name
