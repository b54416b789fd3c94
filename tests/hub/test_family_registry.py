"""The table of families, whose files are imported for the models that name them."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules, resolve_name

import pytest

import octavo.hub.families
from octavo.hub.families.registry import FAMILIES, family_of
from octavo.quantization.resolve import METHODS, ROUNDED

READ_LLAMA = """
import sys
from octavo.hub.config_file import parse_config
raw = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=100)
parse_config(raw | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
print(*(name for name in sys.modules if name.startswith("octavo.hub.families.")))
"""


def test_each_familys_architectures_are_listed_with_its_file() -> None:
    folder = octavo.hub.families
    modules = [f"{folder.__name__}.{found.name}" for found in iter_modules(folder.__path__)]
    tables = {name: import_module(name) for name in modules if not name.endswith(".registry")}
    declared = {
        architecture: f"{name}:FAMILIES"
        for name, module in tables.items()
        for architecture in getattr(module, "FAMILIES", ())
    }
    assert declared == FAMILIES


@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_model_can_be_imported(architecture: str) -> None:
    assert isinstance(resolve_name(family_of(architecture).model), type)


@pytest.mark.parametrize("place", [*METHODS.values(), *ROUNDED.values()])
def test_each_way_of_quantisation_can_be_imported(place: str) -> None:
    assert callable(resolve_name(place))


def test_a_configuration_imports_its_own_family_only() -> None:
    ended = subprocess.run([sys.executable, "-c", READ_LLAMA], capture_output=True, text=True, check=True)
    names = {name.rpartition(".")[2] for name in ended.stdout.split()}
    assert names == {"generic", "generic_encoder", "llama", "registry"}
