"""Instructor, by its modes that a server must understand."""

from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import CITY, TOO_LONG

instructor = pytest.importorskip("instructor", reason="instructor is not installed")
core = pytest.importorskip("instructor.core")
openai = pytest.importorskip("openai")


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_structured_output(base_url: str, mode: str, is_streamed: bool) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=base_url, api_key="none"), mode=instructor.Mode[mode])
    request: dict[str, Any] = {
        "model": "fake/model",
        "response_model": City,
        "messages": [{"role": "user", "content": "A city?"}],
    }
    if is_streamed:
        *_, city = client.chat.completions.create_partial(**request)
    else:
        city = client.chat.completions.create(**request)
    assert (city.city, city.population) == (CITY["city"], CITY["population"])


def test_context_overflow(base_url: str) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=base_url, api_key="none", max_retries=0))
    with pytest.raises(core.InstructorRetryException, match="context_length_exceeded"):
        client.chat.completions.create(
            model="fake/model", response_model=City, messages=[{"role": "user", "content": TOO_LONG}], max_retries=0
        )
