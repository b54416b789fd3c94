"""What each family of models writes, and what readers should see of it; the splits are written by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.outputs.parsers.base import PromptEnd
from octavo.outputs.parsers.registry import reasoning_format
from tests.outputs.parsers.cuts import check_cuts, places, run, texts

QWEN_TURN = "<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n"
DEEPSEEK_TURN = "<｜begin▁of▁sentence｜><｜User｜>Is </think> a tag?<｜Assistant｜>"
GLM_TURN = "[gMASK]<sop><|user|>\nMay I write <think>?<|assistant|>"

# Name, the prompt's end, the template's values, the answer, the thought, the content.
EXAMPLES = [
    # Thought opened by the prompt, by the model, and not at all.
    ("deepseek_r1", DEEPSEEK_TURN + "<think>\n", None, "So, 2.\n</think>\n\nIt is 2.", "So, 2.", "It is 2."),
    ("deepseek_r1", DEEPSEEK_TURN, None, "<think>\nSo, 2.\n</think>\n\nIt is 2.", "So, 2.", "It is 2."),
    ("deepseek_r1", DEEPSEEK_TURN, None, "So, 2.\n</think>\n\nIt is 2.", "So, 2.", "It is 2."),
    ("deepseek_r1", "", None, "never ending", "never ending", ""),
    (
        "deepseek_r1",
        DEEPSEEK_TURN + "<think>\n",
        None,
        "I call.<｜tool▁calls▁begin｜>x",
        "I call.",
        "<｜tool▁calls▁begin｜>x",
    ),
    ("step5", "<think>", None, "So.</think>Two.", "So.", "Two."),
    # The prompt closes the thought where thinking is off; the values decide where the prompt is silent.
    ("deepseek_v3", DEEPSEEK_TURN + "</think>", {"thinking": False}, "Two.", "", "Two."),
    ("deepseek_v3", DEEPSEEK_TURN + "</think>", None, "Two </think> tags.", "", "Two </think> tags."),
    ("deepseek_v3", DEEPSEEK_TURN + "<think>", {"thinking": True}, "So.</think>Two.", "So.", "Two."),
    ("deepseek_v3", "", {"thinking": True}, "So.</think>Two.", "So.", "Two."),
    ("deepseek_v3", "", {"enable_thinking": True}, "So.</think>Two.", "So.", "Two."),
    ("deepseek_v3", "", None, "Two.", "", "Two."),
    ("deepseek_v4", "<think>", {"thinking": True}, "So<｜DSML｜tool_calls>x", "So", "<｜DSML｜tool_calls>x"),
    ("deepseek_v41", "<think>", {"thinking": True}, "So<｜DSML｜ calls>x", "So", "<｜DSML｜ calls>x"),
    ("poolside_v1", "<user>x</think></user><assistant>", {"thinking": True}, "<think>So</think>Two", "So", "Two"),
    ("holo2", "", None, "So.</think>Two.", "So.", "Two."),
    ("holo2", "", {"thinking": False}, "Two.", "", "Two."),
    # Qwen3: the hybrid model writes both tags, later templates write the first.
    ("qwen3", QWEN_TURN, None, "<think>\nSo.\n</think>\n\nTwo.", "So.", "Two."),
    ("qwen3", QWEN_TURN + "<think>\n", None, "So.\n</think>\n\nTwo.", "So.", "Two."),
    ("qwen3", QWEN_TURN + "<think>\n", None, "Wait, let me", "Wait, let me", ""),
    ("qwen3", QWEN_TURN, None, "<think>\nWait, let me", "Wait, let me", ""),
    ("qwen3", QWEN_TURN + "<think>\n\n</think>\n\n", {"enable_thinking": False}, "Two.", "", "Two."),
    ("qwen3", QWEN_TURN, None, "<think>\n\n</think>\n\nTwo.", "", "Two."),
    ("qwen3", QWEN_TURN, None, "Two, without a thought.", "Two, without a thought.", ""),
    ("qwen3", QWEN_TURN, None, "So.</think>Two.", "So.", "Two."),
    ("qwen3", QWEN_TURN, {"enable_thinking": False}, "Two, without a thought.", "", "Two, without a thought."),
    ("qwen3", "", None, "Wait, let me", "Wait, let me", ""),
    ("think", QWEN_TURN, None, "<think>\nSo.\n</think>\n\nTwo.", "So.", "Two."),
    ("think", QWEN_TURN, None, "Two, without a thought.", "", "Two, without a thought."),
    ("qwen3", "", {"enable_thinking": False}, "Two.", "", "Two."),
    ("qwen3", "<think>", None, "a <think> tag </think>Two <think>s</think>", "a <think> tag ", "Two <think>s</think>"),
    (
        "qwen3",
        "<think>\n",
        None,
        "A <tool_call> helps.\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "A <tool_call> helps.",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
    ),
    ("qwen3", "<think>\n", None, 'So\n<tool_call>\n{"name": "f"', "So", '<tool_call>\n{"name": "f"'),
    ("mimo", "", None, "<think>So</think>Two", "So", "Two"),
    ("minicpmv", "<|im_start|>assistant\n<think>\n", None, "So</think>Two", "So", "Two"),
    ("minicpmv", "", None, "Two", "", "Two"),
    ("glm45", GLM_TURN, None, "\n<think>So.</think>\nTwo.", "So.", "Two."),
    ("glm45", GLM_TURN + "\n<think></think>", {"enable_thinking": False}, "\nTwo.", "", "\nTwo."),
    ("glm47", GLM_TURN + "<think>", None, "So.<tool_call>f", "So.", "<tool_call>f"),
    ("ling3", "<role>ASSISTANT</role>", {"enable_thinking": True}, "<think>So</think>Two", "So", "Two"),
    ("ling3", "<role>ASSISTANT</role>", None, "Two", "", "Two"),
    # Words instead of tags.
    ("granite", "", None, "Here is my thought process: So. Here is my response: Two.", "So.", "Two."),
    ("granite", "", None, "Here's my thought process:\nSo.\n\nHere's my response:\nTwo.", "So.", "Two."),
    ("granite", "", None, "Here is my answer: Two.", "", "Here is my answer: Two."),
    ("granite", "", None, "Two. Here is my thought process: So", "", "Two. Here is my thought process: So"),
    ("granite", "", None, "<think>So</think><response>Two</response>", "So", "Two"),
    ("granite_thinking_parser", "<think>\n", None, "So\n</think>\nTwo", "So", "Two"),
    ("nemotron_v3", "<|im_start|>assistant\n<think>\n", None, "So\n</think>\n\nTwo", "So", "Two"),
    ("nemotron_v3", "<think></think>", {"enable_thinking": False}, "Two", "", "Two"),
    ("nemotron_v3", "<think>\n", {"force_nonempty_content": True}, "So it is", "So it is", "So it is"),
    ("nemotron_v3", "<think>\n", {"force_nonempty_content": True}, "So</think>Two \n", "So", "Two \n"),
    # Tags around the content.
    ("hunyuan_a13b", "<|extra_0|>", None, "<think>\nSo\n</think>\n<answer>\nTwo\n</answer>", "So", "Two"),
    ("hunyuan_a13b", "<|extra_0|>", None, "<think>\n\n</think>\n<answer>\nTwo\n</answer>", "", "Two"),
    ("hunyuan_a13b", "<|extra_0|>", None, "<answer>Two</answer>", "", "Two"),
    ("hunyuan_a13b", "<|extra_0|>", None, "Two </answer>s", "", "Two </answer>s"),
    ("ernie45", "<think>\n", None, "So\n</think>\n\n<response>\nTwo\n</response>\n", "So", "Two"),
    ("ernie45", "<think>\n", None, "So\n</think>\nTwo", "So", "Two"),
    ("ernie45", "<think>\n", None, 'So\n</think>\n\n\n<tool_call>\n{"n', "So", '<tool_call>\n{"n'),
    ("ernie45", "<think>\n", None, "So\n</think>\n\n<response>\nTwo\nThr", "So", "Two\nThr"),
    (
        "cohere_command3",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        None,
        "<|START_THINKING|>So<|END_THINKING|><|START_RESPONSE|>Two<|END_RESPONSE|>",
        "So",
        "Two",
    ),
    ("cohere_command3", "<|START_THINKING|><|END_THINKING|>", None, "<|START_RESPONSE|>Two<|END_RESPONSE|>", "", "Two"),
    ("cohere_command4", "", None, "<|START_THINKING|>So<|END_THINKING|><|START_TEXT|>Two<|END_TEXT|>", "So", "Two"),
    (
        "cohere_command3",
        "",
        None,
        "<|START_THINKING|>So<|END_THINKING|><|START_ACTION|>[]<|END_ACTION|>",
        "So",
        "<|START_ACTION|>[]<|END_ACTION|>",
    ),
    (
        "kimi_k3",
        "<|open|>think<|sep|>",
        None,
        "So<|close|>think<|sep|><|open|>response<|sep|>Two<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        "So",
        "Two",
    ),
    (
        "kimi_k3",
        "<|open|>response<|sep|>",
        {"thinking": False},
        "Two<|close|>response<|sep|><|open|>tools<|sep|>x",
        "",
        "Two<|open|>tools<|sep|>x",
    ),
    # Tags of their own.
    ("hy_v3", "", {"reasoning_effort": "high"}, "So</think:opensource>Two", "So", "Two"),
    ("hy_v3", "<think></think>", None, "Two", "", "Two"),
    ("hy_v3", "", {"reasoning_effort": "no_think"}, "Two", "", "Two"),
    ("hy_v4", "<think:opensource>", None, "So</think:opensource>Two", "So", "Two"),
    ("mistral", "<s>[INST]x [THINK]y[/INST]", None, "[THINK]So[/THINK]Two", "So", "Two"),
    ("mistral", "[/INST]", None, "Two", "", "Two"),
    ("mistral", "[/INST]", None, "Two [/THINK] too", "", "Two [/THINK] too"),
    ("mistral", "[/INST]", None, "[THINK]So[TOOL_CALLS]f", "So", "[TOOL_CALLS]f"),
    ("minimax_m2", "]~b]ai\n<think>\n", None, "So\n</think>\n\nTwo", "So", "Two"),
    ("minimax_m2", "]~b]ai\n", None, "<think>So</think>Two", "So", "Two"),
    ("minimax_m2_append_think", "]~b]ai\n<think>\n", None, "So\n</think>\n\nTwo", "", "<think>So\n</think>\n\nTwo"),
    ("minimax_m2_append_think", "]~b]ai\n", None, "<think>So</think>Two", "", "<think>So</think>Two"),
    ("minimax_m3", "", None, "<mm:think>So</mm:think>Two", "So", "Two"),
    ("minimax_m3", "", None, "</mm:think>Two", "", "Two"),
    ("minimax_m3", "<mm:think>", {"thinking_mode": "enabled"}, "So</mm:think>Two", "So", "Two"),
    ("minimax_m3", "", {"thinking_mode": "disabled"}, "Two", "", "Two"),
    ("seed_oss", "<seed:bos>assistant\n", None, "<seed:think>So</seed:think>Two", "So", "Two"),
    ("seed_oss", "<seed:think>\n</seed:think>", None, "Two", "", "Two"),
    ("kimi_k2", "<|im_middle|>", None, "<think>So<|tool_calls_section_begin|>x", "So", "<|tool_calls_section_begin|>x"),
    ("kimi_k2", "<|im_middle|><think></think>", {"thinking": False}, "Two", "", "Two"),
    ("k2_horizon", "<ifm|think_fast>", None, "So</ifm|think_fast>Two", "So", "Two"),
    ("olmo3", "<|im_start|>assistant\n<think>", None, "So</think>Two", "So", "Two"),
    ("plamo3", "", None, "<|plamo:begin_think:plamo|>So<|plamo:end_think:plamo|>Two", "So", "Two"),
    ("gemma4", "<|turn>model\n", None, "<|channel>thought\nSo<channel|>Two", "So", "Two"),
    ("gemma4", "<|turn>model\n", None, "Two", "", "Two"),
    ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", None, "Two", "", "Two"),
    ("gemma4", "<|turn>model\n", None, "<|channel>thou", "thou", ""),
    # Tags where they are not expected.
    ("qwen3", "<think>\n", None, "<think><think>\n\nSo</think>Two", "So", "Two"),
    ("qwen3", QWEN_TURN, None, " \n<think>So</think>Two", "So", "Two"),
    ("think", QWEN_TURN, None, " " * 65 + "<think>So", "", " " * 65 + "<think>So"),
    ("hunyuan_a13b", "", None, "<answer>\nTwo\n</answer>\n and </answer>\n", "", "Two and </answer>\n"),
    ("ernie45", "<think>\n", None, "So</think><response>\nTwo\n\n", "So", "Two\n\n"),
    (
        "cohere_command3",
        "",
        None,
        "<|START_RESPONSE|>Two\n<|START_THINKING|>So<|END_THINKING|>\nThree\n<|END_RESPONSE|>",
        "So",
        "Two\nThree",
    ),
    # Several thoughts in one answer.
    ("step3", "<|BOT|>assistant\n<think>\n", None, "A</think>B<think>\nC\n</think>\nD", "A\nC", "BD"),
    ("step3p5", "<think>\n", {"enable_thinking": False}, "A\n</think>\nB", "A", "B"),
    ("step3p5", "<think>\n", None, "A\n</think>\nB\n<think>C</think>\nD", "A\nC", "B\nD"),
    ("mistral", "[/INST]", None, "Hm. [THINK]So[/THINK]Two", "So", "Hm. Two"),
    # Messages with headers.
    (
        "muse_glimmer",
        "<|start|>user to=self<|message|>x<|eot|><|start|>assistant",
        None,
        " to=self<|message|>So<|eom|><|start|>assistant to=user<|message|>Two<|eot|>",
        "So",
        "Two",
    ),
    (
        "muse",
        "<|start|>assistant",
        None,
        " to=self<|message|>So<|eom|><|start|>assistant to=maps.find<|message|><x><|eom|>",
        "So",
        "<x>",
    ),
    ("musespark1x", "<|start|>assistant", None, "<|message|>Two", "", "Two"),
    ("inkling", "<|message_model|>", None, "<|content_text|>Two<|content_thinking|>So", "So", "Two"),
    (
        "inkling",
        "<|message_model|>",
        None,
        "<|content_thinking|>So<|end_message|><|message_model|><|content_text|>Two<|content_model_end_sampling|>",
        "So",
        "Two",
    ),
    (
        "inkling",
        "<|message_model|>",
        None,
        '<|content_thinking|>So<|end_message|><|message_model|>f<|content_invoke_tool_json|>{"name":"f"}<|end_message|>',
        "So",
        '<|content_invoke_tool_json|>{"name":"f"}<|end_message|>',
    ),
]


@pytest.mark.parametrize(("name", "prompt", "values", "answer", "thought", "content"), EXAMPLES)
def test_the_split(name, prompt, values, answer, thought, content):
    format_ = reasoning_format(name)
    parts = check_cuts(lambda: format_.start(PromptEnd(prompt, values)), answer, [3, 7, 11, 20])
    assert texts(parts) == (thought, content)


@settings(max_examples=150)
@given(st.sampled_from(EXAMPLES), st.data())
def test_truncated_anywhere_the_cuts_agree_and_it_is_a_beginning(example, data):
    name, prompt, values, answer, thought, content = example
    end = data.draw(st.integers(0, len(answer)))
    parts = check_cuts(
        lambda: reasoning_format(name).start(PromptEnd(prompt, values)), answer[:end], data.draw(places())
    )
    got_thought, got_content = texts(parts)
    if name in {"granite", "gemma4", "muse", "muse_glimmer", "musespark1x"} or values == {
        "force_nonempty_content": True
    }:
        return  # the beginning of a tag, at the very end, shows as what it is
    # What is shown is what the whole shows, but for the beginning of a tag at the very end.
    assert thought.startswith(got_thought) or answer[:end].endswith(got_thought[-1])
    assert content.startswith(got_content) or answer[:end].endswith(got_content[-1])


EARLIER = (
    "{start}user\nIs <think> closed by </think>?{end}{start}assistant\n<think>\nYes.\n</think>\n\nIt is.{end}"
    "{start}user\n<think>Go on{end}{start}assistant\n"
)


UNTAGGED_IS_A_THOUGHT = ("qwen3", "mimo", "step3", "step3p5", "step5", "deepseek_r1", "minimax_m2", "olmo3", "ernie45")


@pytest.mark.parametrize(
    ("name", "opened", "expected"),
    [
        ("think", "", ("", "a</think>b")),
        ("glm45", "", ("", "a</think>b")),
        *[(name, "", ("a", "b")) for name in UNTAGGED_IS_A_THOUGHT],
        *[(name, "<think>\n", ("a", "b")) for name in ("think", "glm45", *UNTAGGED_IS_A_THOUGHT)],
    ],
)
@pytest.mark.parametrize(
    ("start", "end"), [("<|im_start|>", "<|im_end|>"), ("<｜User｜>", "<｜end▁of▁sentence｜>"), ("]~b]", "[e~[")]
)
def test_only_the_last_message_of_the_prompt_counts(name, start, end, opened, expected):
    prompt = EARLIER.format(start=start, end=end) + opened
    parser = reasoning_format(name).start(PromptEnd(prompt))
    assert parser.is_reasoning  # the model is asked to think, whoever writes the tag
    assert texts(run(parser, ["a</think>b"])) == expected


@pytest.mark.parametrize("name", ["think", *UNTAGGED_IS_A_THOUGHT])
def test_a_thought_that_the_prompt_closes_is_over(name):
    """Of earlier turns' thoughts nothing counts either way."""
    prompt = EARLIER.format(start="<|im_start|>", end="<|im_end|>") + "<think>\n\n</think>\n\n"
    parser = reasoning_format(name).start(PromptEnd(prompt))
    assert not parser.is_reasoning
    assert texts(run(parser, ["a</think>b"])) == ("", "a</think>b")


def test_a_thought_in_the_prompt_that_breaks_off_goes_on():
    parser = reasoning_format("mistral").start(PromptEnd("[INST]x[/INST][THINK]I was about to"))
    assert parser.is_reasoning
    assert texts(run(parser, [" say[/THINK]Hi"])) == (" say", "Hi")


@pytest.mark.parametrize(
    ("name", "prompt", "values", "is_reasoning"),
    [
        ("deepseek_v3", "", None, False),
        ("deepseek_v3", "", {"thinking": "false"}, False),
        ("deepseek_v3", "<think>", None, True),
        ("qwen3", "<think>\n\n</think>\n\n", None, False),
        ("qwen3", "<|im_start|>assistant\n", {"enable_thinking": False}, False),
        ("mistral", "[/INST]", None, False),
        ("openai_gptoss", "<|start|>assistant", None, True),
        ("openai_gptoss", "<|start|>assistant<|channel|>final<|message|>", None, False),
    ],
)
def test_whether_an_answer_begins_with_a_thought(name, prompt, values, is_reasoning):
    assert reasoning_format(name).start(PromptEnd(prompt, values)).is_reasoning is is_reasoning


@pytest.mark.parametrize(
    ("name", "prompt", "end_tag"),
    [
        ("hy_v4", "<|hy_Assistant|><think:opensource>", "</think:opensource>"),
        ("hy_v4", "<|hy_Assistant|><think>", "</think>"),
        ("k2_horizon", "<ifm|im_start>assistant<ifm|think_faster>", "</ifm|think_faster>"),
        ("nemotron_v3", "<think>\n", "</think>"),
        ("granite", "", "Here is my response:"),
    ],
)
def test_the_prompts_start_tag_tells_the_end_tag(name, prompt, end_tag):
    assert reasoning_format(name).start(PromptEnd(prompt)).end_tag == end_tag
