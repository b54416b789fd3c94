"""Whatever is chosen among the allowed tokens, the text keeps to what was asked for: every kind on both backends."""

import ast
import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from walking import allowed_tokens, read_to, walk

from octavo.records import StructuredOutputsParams
from octavo.sampling.grammar.base import CompiledGrammar, GrammarBackend, GrammarState
from octavo.sampling.grammar.source import GrammarSource, read_source
from octavo.tokenization.vocabulary import Vocabulary

Backends = dict[str, GrammarBackend]
INTEGER, STRING = {"type": "integer"}, {"type": "string"}
SEEDS = range(6)
COMPILED: dict[tuple[str, GrammarSource], CompiledGrammar] = {}

SCHEMAS: dict[str, Any] = {
    "object": {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["a"]},
    "nested": {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "number", "minimum": 0.5, "maximum": 9}, "maxItems": 3},
            "inner": {"type": "object", "properties": {"x": {"type": ["boolean", "null"]}}, "required": ["x"]},
        },
        "required": ["list", "inner"],
    },
    "values": {"enum": ["a", 1, None, [1, 2], {"k": "ü"}]},
    "typed values": {"type": "string", "enum": ["a", 1]},
    "constant": {"const": {"a": [True, "é"]}},
    "bounds": {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
    "multiples": {"type": "integer", "multipleOf": 3},
    "bounded multiples": {"type": "integer", "multipleOf": 3, "maximum": 17},
    "older bounds": {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 6},
    "length": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]+$"},
    "open pattern": {"type": "string", "pattern": "[0-9]{3}"},
    "pattern with quotes": {"type": "string", "pattern": '^["a]"b\\\\c\\n$'},
    "pattern of printable characters": {"type": "string", "pattern": '^[ -~]{1,9}[^"]\\s?$'},
    "pattern of alternatives": {"type": "string", "pattern": "^a$|(^b+$)"},
    "reference": {
        "$defs": {"a/b": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}}, "required": []}},
        "$ref": "#/$defs/a~1b",
    },
    "alternatives": {"anyOf": [INTEGER, {"type": "string", "maxLength": 3}, {"type": "null"}]},
    "discriminated": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": INTEGER}, "required": ["kind", "x"]},
            {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]},
        ]
    },
    "tuple": {"type": "array", "items": [INTEGER, STRING], "additionalItems": False, "minItems": 2},
    "named by pattern": {"type": "object", "patternProperties": {"^x[0-9]$": INTEGER}},
    "named by quotes": {"type": "object", "propertyNames": {"enum": ['a"b']}, "additionalProperties": INTEGER},
    "named by list": {"type": "object", "propertyNames": {"enum": ["a", "b.c"]}, "additionalProperties": INTEGER},
    "date": {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}, "required": ["on"]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "required and unknown": {"type": "object", "properties": {"a": INTEGER}, "required": ["z"]},
    "number of properties": {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1},
    "anything": {"type": "object"},
}


def start(backends: Backends, name: str, **fields: Any) -> GrammarState:
    source = read_source(StructuredOutputsParams(**fields, backend=name))
    if (name, source) not in COMPILED:
        COMPILED[name, source] = backends[name].compile(source)
    return COMPILED[name, source].start()


def followed_by(**fields: Any) -> list[str]:
    return list(read_source(StructuredOutputsParams(**fields)).backends)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", SCHEMAS)
def test_json_fits_its_schema(name: str, backends: Backends, vocabulary: Vocabulary) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft4Validator if name in ("older bounds", "tuple") else jsonschema.Draft202012Validator
    for backend in followed_by(json=schema):
        for seed in SEEDS:
            text = walk(start(backends, backend, json=schema), vocabulary, seed)
            validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
class TestEveryBackend:
    @pytest.mark.parametrize(
        "regex",
        [
            r"[a-c]{2,5}\d+",
            r"(?:foo|ba[rz])?",
            r".{1,4}",
            r"[^a-z\n]{3}",
            r"^\w{1,9}@\w+\.(com|org)$",
            r"[\[&~\]-]+",
            "日本+",
        ],
    )
    def test_text_matches_the_regex(self, regex: str, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        for seed in SEEDS:
            text = walk(start(backends, backend, regex=regex), vocabulary, seed)
            assert re.fullmatch(regex, text.decode())

    def test_text_is_one_of_the_choices(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        choice = ["yes", "no", "not sure", "y", "a.b|c", "(é)", ""]
        texts = {walk(start(backends, backend, choice=choice), vocabulary, seed).decode() for seed in range(30)}
        assert texts <= set(choice) and len(texts) > 3

    def test_json_object(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        for seed in SEEDS:
            assert isinstance(json.loads(walk(start(backends, backend, json_object=True), vocabulary, seed)), dict)

    def test_ebnf(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        grammar = 'root ::= term (("+" | "-") term){0,3}\nterm ::= [0-9]{1,3} | "(" root ")"'
        for seed in SEEDS:
            text = walk(start(backends, backend, grammar=grammar), vocabulary, seed, num_wild=4)
            ast.parse(re.sub(r"\b0+(?=\d)", "", text.decode()), mode="eval")

    def test_older_structural_tag(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        tag = {
            "structures": [
                {
                    "begin": "<f=add>",
                    "schema": {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]},
                    "end": "</f>",
                }
            ],
            "triggers": ["<f="],
        }
        state = start(backends, backend, structural_tag=json.dumps(tag))
        for token_id in vocabulary.encode("free words, then <f=add>"):
            assert state.accept(token_id)
        bound = read_to(state, vocabulary, b"</f>")
        assert set(json.loads(bound.removesuffix(b"</f>"))) == {"x"}
        for token_id in vocabulary.encode(" and free again"):
            assert state.accept(token_id)
        assert set(vocabulary.eos_ids) <= set(allowed_tokens(state, vocabulary).tolist())

    def test_layouts(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
        compact = start(backends, backend, json=schema, disable_any_whitespace=True)
        assert accepts(compact, vocabulary, '{"a": 1, "b": 2}')
        compact = start(backends, backend, json=schema, disable_any_whitespace=True)
        assert not accepts(compact, vocabulary, '{\n"a": 1, "b": 2}')
        for spaces, is_allowed in ((20, True), (21, False)):
            state = start(backends, backend, json=schema)
            assert accepts(state, vocabulary, "{" + " " * spaces + '"a":1,\n"b" : 2}') is is_allowed

    def test_objects_have_the_properties_that_are_named(
        self, backend: str, backends: Backends, vocabulary: Vocabulary
    ) -> None:
        schema = {"type": "object", "properties": {"a": INTEGER}}
        assert not accepts(start(backends, backend, json=schema), vocabulary, '{"a": 1, "b": 2}')
        is_open = {**schema, "additionalProperties": True}
        assert accepts(start(backends, backend, json=is_open), vocabulary, '{"a": 1, "b": 2}')
        free = {"type": "object"}
        assert accepts(start(backends, backend, json=free), vocabulary, '{"b": 2}')
        closed = start(backends, backend, json=free, disable_additional_properties=True)
        assert not accepts(closed, vocabulary, '{"b": 2}')

    def test_rollback_is_as_if_the_tokens_had_not_been(
        self, backend: str, backends: Backends, vocabulary: Vocabulary
    ) -> None:
        token_ids = [*vocabulary.encode('{"a": "some words", "b": 12}'), vocabulary.eos_ids[0]]
        state = start(backends, backend, json=SCHEMAS["object"])
        masks = []
        for token_id in token_ids:
            masks.append(allowed_tokens(state, vocabulary))
            assert state.accept(token_id)
        assert state.is_finished
        for num_back in (1, 4, len(token_ids)):
            state.rollback(num_back)
            assert not state.is_finished
            place = len(token_ids) - num_back
            np.testing.assert_array_equal(allowed_tokens(state, vocabulary), masks[place])
            for token_id in token_ids[place:]:
                assert state.accept(token_id)

    def test_forks_go_their_own_ways(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        state = start(backends, backend, regex="a(b|c)d")
        a, b, c, d = (vocabulary.encode(letter)[0] for letter in "abcd")
        assert state.accept(a)
        fork = state.fork()
        assert fork.accept(b) and fork.accept(d) and fork.accept(vocabulary.eos_ids[1]) and fork.is_finished
        assert not state.is_finished and state.accept(c)
        fork.rollback(2)
        np.testing.assert_array_equal(allowed_tokens(fork, vocabulary), allowed_tokens(state, vocabulary))

    def test_a_refused_token_changes_nothing(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        state = start(backends, backend, regex="ab")
        before = allowed_tokens(state, vocabulary)
        for wrong in (vocabulary.encode("x")[0], vocabulary.eos_ids[0], vocabulary.size - 1, 1):
            assert not state.accept(wrong)
        np.testing.assert_array_equal(allowed_tokens(state, vocabulary), before)

    def test_special_tokens_are_no_text(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        allowed = set(allowed_tokens(start(backends, backend, regex=r"[\s\S]*"), vocabulary).tolist())
        assert allowed & vocabulary.special_ids == set(vocabulary.eos_ids)
        assert not any(token_id in allowed for token_id in range(49152, vocabulary.size))

    def test_after_the_end_nothing_is_ruled_out(self, backend: str, backends: Backends, vocabulary: Vocabulary) -> None:
        state = start(backends, backend, regex="a?")
        assert state.accept(vocabulary.eos_ids[0]) and state.is_finished
        assert len(allowed_tokens(state, vocabulary)) == vocabulary.size
        assert not state.accept(vocabulary.encode("a")[0])


def test_lark(backends: Backends, vocabulary: Vocabulary) -> None:
    grammar = 'start: WORD ("," WORD)*\nWORD: /[a-z]{2,4}/'
    for seed in SEEDS:
        text = walk(start(backends, "guidance", grammar=grammar), vocabulary, seed, num_wild=5)
        assert re.fullmatch(r"[a-z]{2,4}(,[a-z]{2,4})*", text.decode())


def test_newer_structural_tag(backends: Backends, vocabulary: Vocabulary) -> None:
    """Special tokens go by their names, though their text is nothing a grammar matches."""
    form = {
        "type": "sequence",
        "elements": [
            {"type": "token", "token": "<|im_start|>"},
            {"type": "regex", "pattern": "[0-9]{2}"},
            {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": INTEGER}, "end": "</a>"},
        ],
    }
    state = start(backends, "xgrammar", structural_tag=json.dumps({"type": "structural_tag", "format": form}))
    assert allowed_tokens(state, vocabulary).tolist() == [vocabulary.special_id("<|im_start|>")]
    assert state.accept(vocabulary.special_id("<|im_start|>") or 0)
    assert accepts(state, vocabulary, "12<a>7</a>")


def test_white_space_by_pattern(backends: Backends, vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": INTEGER, "minItems": 2}
    assert followed_by(json=schema, whitespace_pattern="~") == ["guidance"]
    for text, is_allowed in (("[1,~2]", True), ("[1, 2]", False)):
        state = start(backends, "guidance", json=schema, whitespace_pattern="~")
        assert accepts(state, vocabulary, text) is is_allowed


def accepts(state: GrammarState, vocabulary: Vocabulary, text: str) -> bool:
    return all(state.accept(token_id) for token_id in [*vocabulary.encode(text), vocabulary.eos_ids[0]])
