"""What vLLM called structured outputs before version 0.11."""

from typing import Any

from pydantic import BaseModel

from octavo.records import StructuredOutputsParams
from octavo.records.structured import GrammarBackend


class GuidedDecodingParams:
    """The old name of :class:`~octavo.records.StructuredOutputsParams`; making one gives such parameters."""

    def __new__(  # type: ignore[misc]
        cls,
        json: str | dict[str, Any] | type[BaseModel] | None = None,
        regex: str | None = None,
        choice: list[str] | None = None,
        grammar: str | None = None,
        json_object: bool | None = None,
        backend: GrammarBackend | None = None,
        backend_was_auto: bool = False,
        disable_fallback: bool = False,
        disable_any_whitespace: bool = False,
        disable_additional_properties: bool = False,
        whitespace_pattern: str | None = None,
        structural_tag: str | None = None,
    ) -> StructuredOutputsParams:
        """Convert.

        Args:
            json: a JSON schema, as an object, as its text or as a pydantic model.
            backend_was_auto, disable_fallback: taken for compatibility.

        Raises:
            InvalidRequestError: not exactly one kind of form is given, or a field is wrong.
        """
        if isinstance(json, type) and issubclass(json, BaseModel):
            json = json.model_json_schema()
        return StructuredOutputsParams(
            json=json,
            regex=regex,
            choice=choice,
            grammar=grammar,
            json_object=json_object,
            disable_any_whitespace=disable_any_whitespace,
            disable_additional_properties=disable_additional_properties,
            whitespace_pattern=whitespace_pattern,
            structural_tag=structural_tag,
            backend=backend,
        )

    @classmethod
    def from_optional(cls, **values: Any) -> StructuredOutputsParams | None:
        """The same, or None if no form is given."""
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        if not any(values.get(name) for name in kinds):
            return None
        return cls(**values)
