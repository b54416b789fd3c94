"""Read structural tags: texts that are free but for what stands between tags, such as calls of tools.

The format is xgrammar's: ``{"type": "structural_tag", "format": {"type": …}}``. The older form, ``structures`` with
``begin``, ``schema`` and ``end``, and the ``triggers`` that open one, is written as the newer one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.sampling.grammar.grammar_text import check_grammar
from octavo.sampling.grammar.regex import read_regex
from octavo.sampling.grammar.schema import SchemaReader

MAX_TAGS = 1024
"""Most formats of a structural tag."""
MAX_TAG_TEXT = 1 << 14
MAX_TAG_REPETITIONS = 10_000
_XML_STYLES = ("qwen", "minimax", "minimax_m3", "deepseek", "deepseek_v4_1", "glm", "cohere", "kimi_k3")
_STYLES = frozenset(("json", *(f"{model}_xml" for model in _XML_STYLES)))
_Format = dict[str, Any]


@dataclass(slots=True)
class StructuralTag:
    """A structural tag that has been read.

    Attributes:
        value: what xgrammar takes.
        unsupported: backend → the first thing that it does not follow.
    """

    value: dict[str, Any]
    unsupported: dict[str, str] = field(default_factory=dict)


def read_structural_tag(source: Any) -> StructuralTag:
    """Check a structural tag and write it in the newer form.

    Raises:
        InvalidRequestError: it is malformed, or a schema, regex or grammar in it is.
    """
    reader = _Reader()
    if not isinstance(source, dict):
        raise reader.error("must be a JSON object")
    if "structures" in source or "triggers" in source:
        return StructuralTag(reader.read_older(source), reader.unsupported)
    if source.get("type", "structural_tag") != "structural_tag" or "format" not in source:
        raise reader.error("must have a 'format', or 'structures' and 'triggers'")
    reader.miss("a structural tag with 'format'", "guidance")
    value = {"type": "structural_tag", "format": reader.read(source["format"])}
    return StructuralTag(value, reader.unsupported)


class _Reader:
    def __init__(self) -> None:
        self.unsupported: dict[str, str] = {}
        self._num_formats = 0
        self._kinds: dict[str, Callable[[_Format], _Format]] = {
            "const_string": lambda f: {"value": self._text(f, "value")},
            "json_schema": self._json_schema,
            "qwen_xml_parameter": lambda f: {"json_schema": self._schema(f.get("json_schema"))},
            "any_text": lambda f: {**self._excludes(f), **self._bounds(f, "max_tokens", "max_chars")},
            "any_tokens": lambda f: {**self._tokens(f, "exclude_tokens"), **self._bounds(f, "max_tokens")},
            "exclude_token": lambda f: self._tokens(f, "exclude_tokens"),
            "token": lambda f: {"token": self._token(f.get("token"))},
            "regex": self._regex,
            "grammar": self._grammar,
            "sequence": lambda f: {"elements": self._formats(f, "elements")},
            "or": lambda f: {"elements": self._formats(f, "elements")},
            "optional": lambda f: {"content": self.read(f.get("content"))},
            "plus": lambda f: {"content": self.read(f.get("content"))},
            "star": lambda f: {"content": self.read(f.get("content"))},
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": lambda f: {
                **self._texts(f, "triggers"),
                **self._tags(f),
                **self._switches(f, "at_least_one", "stop_after_first"),
                **self._excludes(f),
            },
            "token_triggered_tags": lambda f: {
                **self._tokens(f, "trigger_tokens"),
                **self._tags(f),
                **self._switches(f, "at_least_one", "stop_after_first"),
                **self._tokens(f, "exclude_tokens"),
            },
            "tags_with_separator": lambda f: {
                "separator": self._text(f, "separator"),
                **self._tags(f),
                **self._switches(f, "at_least_one", "stop_after_first"),
            },
        }

    def error(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"structural_tag: the tag {message}.", "structured_outputs")

    def miss(self, feature: str, backend: str) -> None:
        self.unsupported.setdefault(backend, feature)

    def read(self, source: Any) -> _Format:
        self._num_formats += 1
        if self._num_formats > MAX_TAGS:
            raise self.error(f"has more than {MAX_TAGS} formats")
        kind = source.get("type") if isinstance(source, dict) else None
        if not isinstance(kind, str) or kind not in self._kinds:
            raise self.error(f"has a format of the unknown type {str(kind)[:40]!r}; known are {', '.join(self._kinds)}")
        return {"type": kind, **self._kinds[kind](source)}

    def read_older(self, source: dict[str, Any]) -> dict[str, Any]:
        structures = source.get("structures")
        if not isinstance(structures, list) or not structures or len(structures) > MAX_TAGS:
            raise self.error(f"must have 1 to {MAX_TAGS} 'structures'")
        triggers = self._texts(source, "triggers")["triggers"]
        tags = []
        for structure in structures:
            if not isinstance(structure, dict):
                raise self.error("has a structure that is no object")
            begin = self._text(structure, "begin")
            if not any(begin.startswith(trigger) for trigger in triggers):
                raise self.error(f"has a structure that begins with {begin[:40]!r}, which no trigger opens")
            schema = structure.get("schema", structure.get("structural_tag_schema"))
            content = {"type": "json_schema", "json_schema": self._schema({} if schema is None else schema)}
            tags.append({"type": "tag", "begin": begin, "content": content, "end": self._text(structure, "end")})
        return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}

    def _json_schema(self, source: _Format) -> _Format:
        style = source.get("style", "json")
        if style not in _STYLES:
            raise self.error(f"has a 'style' that is not known; known are {', '.join(sorted(_STYLES))}")
        return {"json_schema": self._schema(source.get("json_schema")), "style": style}

    def _schema(self, source: Any) -> Any:
        reader = SchemaReader(source, "structural_tag")
        for backend, feature in reader.unsupported.items():
            self.miss(feature, backend)
        return True if reader.schema == {} else reader.schema

    def _regex(self, source: _Format) -> _Format:
        regex = read_regex(self._text(source, "pattern"), "structural_tag")
        if regex.guidance_only is not None:
            self.miss(regex.guidance_only, "xgrammar")
        return {"pattern": regex.text}

    def _grammar(self, source: _Format) -> _Format:
        text = self._text(source, "grammar")
        check_grammar(text, "structural_tag")
        return {"grammar": text}

    def _repeat(self, source: _Format) -> _Format:
        low, high = source.get("min"), source.get("max")
        if type(low) is not int or type(high) is not int or not 0 <= low <= MAX_TAG_REPETITIONS:
            raise self.error(f"has a 'repeat' without 'min' and 'max' from 0 to {MAX_TAG_REPETITIONS:,}")
        if high != -1 and not low <= high <= MAX_TAG_REPETITIONS:
            raise self.error(f"has a 'repeat' whose 'max' is not -1 and not from 'min' to {MAX_TAG_REPETITIONS:,}")
        return {"min": low, "max": high, "content": self.read(source.get("content"))}

    def _tag(self, source: _Format) -> _Format:
        end = source.get("end")
        if isinstance(end, list):
            ends: Any = self._texts(source, "end", may_be_empty=True)["end"]
        else:
            ends = self._edge(source, "end")
        return {"begin": self._edge(source, "begin"), "content": self.read(source.get("content")), "end": ends}

    def _edge(self, source: _Format, key: str) -> Any:
        if isinstance(source.get(key), dict):
            return {"type": "token", "token": self._token(source[key].get("token"))}
        return self._text(source, key)

    def _tags(self, source: _Format) -> _Format:
        tags = self._formats(source, "tags")
        if any(tag["type"] != "tag" for tag in tags):
            raise self.error("has 'tags' that are not of type 'tag'")
        return {"tags": tags}

    def _formats(self, source: _Format, key: str) -> list[_Format]:
        formats = source.get(key)
        if not isinstance(formats, list) or not formats:
            raise self.error(f"has no list of formats under {key!r}")
        return [self.read(one) for one in formats]

    def _switches(self, source: _Format, *keys: str) -> _Format:
        return {key: bool(source.get(key, False)) for key in keys}

    def _bounds(self, source: _Format, *keys: str) -> _Format:
        bounds = {key: source[key] for key in keys if source.get(key) is not None}
        if any(type(bound) is not int or not 0 <= bound < 1 << 31 for bound in bounds.values()):
            raise self.error(f"has a bound that is no whole number: {', '.join(bounds)}")
        return bounds

    def _excludes(self, source: _Format) -> _Format:
        return self._texts(source, "excludes") if source.get("excludes") else {}

    def _tokens(self, source: _Format, key: str) -> _Format:
        tokens = source.get(key, [])
        if not isinstance(tokens, list) or len(tokens) > MAX_TAGS:
            raise self.error(f"has no list of at most {MAX_TAGS} tokens under {key!r}")
        return {key: [self._token(token) for token in tokens]}

    def _token(self, token: Any) -> int | str:
        if (type(token) is int and 0 <= token < 1 << 31) or (isinstance(token, str) and 0 < len(token) <= MAX_TAG_TEXT):
            return token
        raise self.error("has a 'token' that is neither a token id nor the name of one")

    def _texts(self, source: _Format, key: str, *, may_be_empty: bool = False) -> dict[str, list[str]]:
        texts = source.get(key)
        if not isinstance(texts, list) or not 0 < len(texts) <= MAX_TAGS:
            raise self.error(f"has no list of 1 to {MAX_TAGS} strings under {key!r}")
        if not all(isinstance(text, str) and len(text) <= MAX_TAG_TEXT and (text or may_be_empty) for text in texts):
            raise self.error(f"has something else than strings of 1 to {MAX_TAG_TEXT:,} characters under {key!r}")
        return {key: texts}

    def _text(self, source: _Format, key: str) -> str:
        text = source.get(key)
        if not isinstance(text, str) or len(text) > MAX_TAG_TEXT or "\0" in text:
            raise self.error(f"has no string of at most {MAX_TAG_TEXT:,} characters under {key!r}")
        return text
