"""Limits on parts of bodies that hold before the parts are looked at.

A validator that goes through everything and then counts makes an error record for each of a million wrong entries.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_EXTRA_ARGS = 64


def at_most(limit: int) -> BeforeValidator:
    """Refuses larger objects."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > limit:
            raise PydanticCustomError(
                "too_many", "at most {limit} entries may be given, got {count}", {"limit": limit, "count": len(value)}
            )
        return value

    return BeforeValidator(check)


_Scalar = str | Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)] | float
ExtraArgs = Annotated[
    dict[str, _Scalar | Annotated[list[_Scalar], Field(fail_fast=True)]] | None, at_most(MAX_EXTRA_ARGS)
]
"""vLLM's ``vllm_xargs``: values for logits processors of the owner's."""
