"""Structured output as scripts for vLLM before 0.11 ask for it."""

import pytest
from pydantic import BaseModel

from octavo import SamplingParams
from octavo.compat.guided_decoding import GuidedDecodingParams
from octavo.errors import InvalidRequestError
from octavo.records import StructuredOutputsParams


class Car(BaseModel):
    brand: str


def test_old_scripts_run(mirror: None) -> None:
    from vllm.sampling_params import GuidedDecodingParams as Old

    form = Old(choice=["Positive", "Negative"], backend="xgrammar", disable_fallback=True, backend_was_auto=False)
    expected = StructuredOutputsParams(choice=["Positive", "Negative"], backend="xgrammar")
    assert SamplingParams(guided_decoding=form).structured_outputs == expected


def test_fields_keep_their_order() -> None:
    assert GuidedDecodingParams(None, r"\d+") == StructuredOutputsParams(regex=r"\d+")
    assert GuidedDecodingParams({"type": "object"}) == StructuredOutputsParams(json={"type": "object"})


def test_a_pydantic_model_is_a_schema() -> None:
    assert GuidedDecodingParams(json=Car) == StructuredOutputsParams(json=Car.model_json_schema())


def test_nothing_asked_for_is_nothing() -> None:
    assert GuidedDecodingParams.from_optional(json=None, backend="xgrammar") is None
    assert GuidedDecodingParams.from_optional(regex="a+", json=None) == StructuredOutputsParams(regex="a+")


def test_wrong_forms_are_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="takes exactly one of"):
        GuidedDecodingParams(regex="a", choice=["a"])
    with pytest.raises(InvalidRequestError, match="backend must be one of auto, xgrammar, guidance, got 'outlines'"):
        GuidedDecodingParams(regex="a", backend="outlines")
