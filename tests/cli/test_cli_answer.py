import asyncio
import io
from collections.abc import AsyncGenerator

import pytest

from octavo.cli.answer import TimedAnswer, show_answer
from octavo.cli.backend import AnswerPiece
from octavo.errors import RequestFailedError


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def pieces(*texts: str) -> AsyncGenerator[AnswerPiece, None]:
    for count, text in enumerate(texts, start=1):
        yield AnswerPiece(text, count, "stop" if count == len(texts) else None)


def test_escape_sequences_do_not_reach_a_terminal() -> None:
    out = FakeTerminal()
    answer = asyncio.run(show_answer(pieces("a\x1b[31m", "\x07\tb\n", "\x9b2J\x7fc"), out))
    assert out.getvalue() == "a[31m\tb\n2Jc\n"
    assert answer.text == "a\x1b[31m\x07\tb\n\x9b2J\x7fc"


def test_a_file_gets_the_text_as_it_is() -> None:
    out = io.StringIO()
    asyncio.run(show_answer(pieces("a\x1b[31m", "b\n"), out))
    assert out.getvalue() == "a\x1b[31mb\n"


def test_a_failure_within_an_answer_is_raised() -> None:
    async def failing() -> AsyncGenerator[AnswerPiece, None]:
        yield AnswerPiece("half", 1)
        raise RequestFailedError("It broke.")

    out = io.StringIO()
    with pytest.raises(RequestFailedError, match="It broke"):
        asyncio.run(show_answer(failing(), out))
    assert out.getvalue() == "half\n"


def test_speed() -> None:
    answer = TimedAnswer(num_tokens=11, first_token_time=0.5, end_time=2.5)
    assert answer.speed() == "11 tokens, 5.0 tok/s, first token after 0.50 s"
    assert TimedAnswer(num_tokens=1, first_token_time=0.5, end_time=0.5).speed() == "1 token, first token after 0.50 s"
    assert TimedAnswer(is_interrupted=True).speed() == "0 tokens, interrupted"
    assert "cut at the length limit" in TimedAnswer(finish_reason="length").speed()
    assert "cut at max_tokens (5)" in TimedAnswer(num_tokens=5, max_tokens=5, finish_reason="length").speed()
    assert "cut at the length limit" in TimedAnswer(num_tokens=4, max_tokens=5, finish_reason="length").speed()
