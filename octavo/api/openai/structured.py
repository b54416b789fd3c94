"""Parses ``response_format`` and ``structured_outputs``."""

from typing import Any

import msgspec

from octavo.api.openai.protocol import GenerationRequest
from octavo.api.request_body import parse_structured_outputs
from octavo.errors import InvalidRequestError
from octavo.records import StructuredOutputsParams


def parse_format(body: GenerationRequest) -> StructuredOutputsParams | None:
    """The constraint that a request's fields describe; None for free text.

    Raises:
        InvalidRequestError: there are two, or one is malformed.
    """
    by_format = None if body.response_format is None else format_constraint(body.response_format.model_dump())
    if body.structured_outputs is None:
        return by_format
    if by_format is not None:
        raise InvalidRequestError("Give either response_format or structured_outputs.", "structured_outputs")
    return parse_structured_outputs(body.structured_outputs)


def format_constraint(given: dict[str, Any]) -> StructuredOutputsParams | None:
    """A ``response_format`` as a constraint; None for ``text``.

    Raises:
        InvalidRequestError: the format is unknown or malformed.
    """
    match given:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return StructuredOutputsParams(json_object=True)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return StructuredOutputsParams(json=schema)
        case {"type": "json_schema"}:
            raise InvalidRequestError(
                "response_format.json_schema must have a schema, an object.", "response_format.json_schema"
            )
        case {"type": "structural_tag"}:
            return StructuredOutputsParams(structural_tag=msgspec.json.encode(given).decode())
        case _:
            raise InvalidRequestError(
                "response_format.type must be 'text', 'json_object', 'json_schema' or 'structural_tag', "
                f"got {str(given.get('type'))[:40]!r}.",
                "response_format.type",
            )
