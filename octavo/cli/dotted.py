"""Flags of JSON objects written field by field: ``--hf-overrides.rope_scaling.factor 4``, ``-cc.sizes+ 1,2``."""

import argparse
import json
from collections.abc import Collection, Sequence
from typing import Any

from octavo.cli.values import parse_json
from octavo.errors import ConfigError


def join_fields(arguments: Sequence[str], objects: Collection[str]) -> list[str]:
    """The arguments, with every field of an object as the object that holds it: ``--flag {"key": value}``.

    A field's name that ends with ``+`` appends to a list. Values are JSON if they can be, and text otherwise.

    Args:
        objects: flags that take an object, with their dashes.

    Raises:
        ConfigError: a field has no name or no value.
    """
    joined: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, separator, text = argument.partition("=")
        flag, dot, path = name.partition(".")
        if not dot or flag not in objects:
            joined.append(argument)
            continue
        if not separator:
            text = next(rest, "")
            if not text:
                raise ConfigError(f"{name} takes a value.")
        is_list = path.endswith("+")
        keys = path.removesuffix("+").split(".")
        if not all(keys):
            raise ConfigError(f"{name} names no field: write {flag}.FIELD VALUE.")
        value: Any = [_read(item) for item in text.split(",")] if is_list else _read(text)
        for key in reversed(keys):
            value = {key: value}
        joined += [flag, json.dumps(value)]
    return joined


def _read(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


class MergeObjects(argparse.Action):
    """Joins the objects that a flag is given: fields of later ones win, lists grow."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, _merged(getattr(namespace, self.dest, None), values))


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old[key], value) if key in old else value for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    return new
