"""Structured output and reasoning budgets of the Python entry points, with a reasoning parser."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_llm import SCENARIO_SECONDS, last, loaded_llm, running
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.errors import ConfigError, InvalidRequestError
from octavo.records import StructuredOutputsParams

OPEN = "Is it? <think>\n"
YES_OR_NO = StructuredOutputsParams(choice=["yes", "no"])
PARAMS = SamplingParams(temperature=0, max_tokens=64, structured_outputs=YES_OR_NO)
LIMITED = SamplingParams(temperature=0, max_tokens=64, structured_outputs=YES_OR_NO, thinking_token_budget=5)
Prompt = str | list[int]

pytestmark = pytest.mark.usefixtures("shared_trials")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with loaded_llm(folder, reasoning_parser="qwen3") as llm:
        yield llm


def text_of(llm: LLM, prompt: Any, params: SamplingParams) -> str:
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    return output.outputs[0].text


@pytest.mark.long
@pytest.mark.parametrize("is_text", [True, False])
def test_a_format_binds_what_follows_the_reasoning(llm: LLM, is_text: bool) -> None:
    prompt: Prompt = OPEN if is_text else llm.get_tokenizer().encode(OPEN)
    reasoning, tag, answer = text_of(llm, prompt, LIMITED).partition("</think>")
    assert tag and reasoning not in ("yes", "no") and answer in ("yes", "no")
    free = text_of(llm, prompt, PARAMS)
    assert free[:5] == reasoning[:5] and free not in ("yes", "no")


def test_a_format_binds_at_once_where_the_reasoning_is_over(llm: LLM) -> None:
    assert text_of(llm, OPEN + "Yes.\n</think>\n", PARAMS) in ("yes", "no")


def test_a_model_without_a_tag_token_does_not_reason_first(llm: LLM) -> None:
    assert text_of(llm, "Is it?", PARAMS) in ("yes", "no")


def test_chats_end_their_reasoning_too(llm: LLM) -> None:
    template = "{{ messages[0].content }}<think>\n"
    (output,) = llm.chat([{"role": "user", "content": "Is it?"}], LIMITED, False, chat_template=template)
    assert output.outputs[0].text.partition("</think>")[2] in ("yes", "no")


def test_parameters_of_the_caller_stay_as_they_are(llm: LLM) -> None:
    text_of(llm, OPEN, LIMITED)
    assert LIMITED.reasoning_tags is None and YES_OR_NO.start_after is None


def test_without_a_parser_the_first_token_is_bound(folder: Path) -> None:
    with loaded_llm(folder) as llm:
        assert text_of(llm, OPEN, PARAMS) in ("yes", "no")
        with pytest.raises(InvalidRequestError, match="set --reasoning-parser"):
            text_of(llm, OPEN, LIMITED)


@pytest.mark.long
def test_the_asynchronous_entry_point_does_the_same(folder: Path) -> None:
    async def main() -> str:
        async with asyncio.timeout(SCENARIO_SECONDS), running(folder, reasoning_parser="qwen3") as llm:
            return (await last(llm, "1", LIMITED, OPEN)).outputs[0].text

    assert asyncio.run(main()).partition("</think>")[2] in ("yes", "no")


def test_vllms_structured_outputs_config_names_a_parser() -> None:
    given = {"backend": "guidance", "reasoning_parser": "qwen3"}
    config = EngineConfig.from_kwargs(model="m", structured_outputs_config=given)
    assert (config.model.reasoning_parser, config.model.structured_outputs_backend) == ("qwen3", "guidance")


def test_an_unknown_parser_is_rejected_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no reasoning parser 'qwen'; there are"):
        LLM(str(tmp_path), reasoning_parser="qwen")


def test_a_parser_needs_a_tokenizer(folder: Path) -> None:
    with pytest.raises(ConfigError, match="reasoning_parser needs a tokenizer"):
        LLM(str(folder), reasoning_parser="qwen3", skip_tokenizer_init=True, **SETTINGS)


def test_a_plug_in_brings_a_parser(folder: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from octavo.outputs.parsers.reasoning.tagged import TaggedFormat\n"
        "from octavo.outputs.parsers.registry import register\n"
        'register(TaggedFormat("musing", start_tags=("<muse>",), end_tags=("</muse>",)))\n'
    )
    with loaded_llm(folder, reasoning_parser="musing", reasoning_parser_plugin=str(plugin)) as llm:
        assert text_of(llm, "Is it? <muse>", LIMITED).partition("</muse>")[2] in ("yes", "no")


def test_a_marker_of_ones_own_ends_the_reasoning(folder: Path) -> None:
    markers = {"reasoning_end_str": "Enough.</think>"}
    with loaded_llm(folder, reasoning_parser="qwen3", reasoning_config=markers) as llm:
        assert text_of(llm, OPEN, LIMITED).partition("Enough.</think>")[2] in ("yes", "no")
