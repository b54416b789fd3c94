"""Descriptions of fields: the strings below them in a class. Python does not keep these; they are read from source."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


def field_descriptions(kind: type) -> dict[str, str]:
    """Field → the text below it, on one line; fields without one are left out."""
    return _module_descriptions(kind.__module__).get(kind.__name__, {})


@cache
def _module_descriptions(module: str) -> dict[str, dict[str, str]]:
    """Class → its fields' descriptions."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _descriptions(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _descriptions(definition: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
