"""``octavo models``: the architectures that run, and what the parity tests showed of each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.cli.parser import Parser
from octavo.errors import ConfigError
from octavo.hub.families import generic, generic_encoder
from octavo.hub.families.registry import FAMILIES, family_of
from octavo.hub.purpose import Purpose, purpose_of
from octavo.hub.splade import SPLADE
from octavo.models.parity import ArchitectureCases, ParityRecord, ParityRun, read_record

_PURPOSES: dict[Purpose, str] = {
    "generate": "text",
    "embed": "embeddings",
    "classify": "classification, reranking",
    "token_classify": "token classification",
    "token_embed": "token embeddings, reranking",
}
_NEVER = "never run"
_NOTES = """\
Models that generate text serve embeddings, classification and reranking, too (--runner pooling).
Any other decoder or encoder of transformers is tried with its modules; octavo plan MODEL says whether it runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """An architecture with one implementation of its layers.

    Attributes:
        purpose: what its models are for.
        module: where its layers are.
        layers: ``own``, or ``transformers`` for those of the library (``--model-impl transformers``).
        cases: the parity tests that ran it; None if they never did.
    """

    architecture: str
    purpose: str
    module: str
    layers: str
    cases: ArchitectureCases | None

    @property
    def parity(self) -> str:
        """The outcome of the parity tests, for people."""
        if self.cases is None:
            return _NEVER
        failed = f", {self.cases.num_failed} failed" if self.cases.num_failed else ""
        return f"{self.cases.num_passed} passed{failed}"

    def matches(self, text: str) -> bool:
        """Whether the name, the purpose or the module contains a text, in whatever case."""
        return any(text.lower() in each.lower() for each in (self.architecture, self.purpose, self.module))


def run(arguments: Sequence[str]) -> int:
    """Print the architectures; returns the exit status.

    Raises:
        ConfigError: a flag is wrong, or nothing matches.
    """
    parser = Parser("octavo models", "Show which architectures run, and when parity tests last covered them.", "[TEXT]")
    parser.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="only those whose name, purpose or module contains this"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with the tests that ran each architecture")
    given = parser.parse(arguments)
    record = read_record()
    rows = [row for row in all_rows(record) if row.matches(given.text)]
    if not rows:
        raise ConfigError(f"No architecture, purpose or module contains {given.text!r}; see octavo models for all.")
    last = None if record is None else record.run
    if given.json:
        facts = {"parity_run": msgspec.to_builtins(last), "architectures": [_facts(row) for row in rows]}
        print(json.dumps(facts, indent=2))
        return 0
    print(_table(rows))
    print(f"\nParity with Hugging Face: {describe_run(last)}\n{_NOTES}")
    return 0


def all_rows(record: ParityRecord | None) -> list[Row]:
    """The families' architectures by name, then those that parity tests ran with the library's modules."""
    octavo, library = ({}, {}) if record is None else (record.octavo, record.transformers)
    families = [_row(name, family_of(name).model, "own", octavo.get(name)) for name in sorted(FAMILIES)]
    return families + [_row(name, _library_model(name), "transformers", library[name]) for name in sorted(library)]


def _library_model(name: str) -> str:
    """The class for an architecture of the library, whose lists of encoders would take a second to import."""
    return generic.MODEL if name.endswith(("ForCausalLM", "LMHeadModel")) else generic_encoder.MODEL


def describe_run(run: ParityRun | None) -> str:
    """A sentence on a run of the parity tests."""
    if run is None:
        return f"{_NEVER}."
    amount = f"all {run.num_run} tests" if run.is_whole else f"only {run.num_run} of the tests"
    outcome = f"{run.num_failed} failed" if run.num_failed else "none failed"
    versions = f"Octavo {run.octavo}, torch {run.torch} and transformers {run.transformers}"
    return f"last run {run.date} with {versions} on {' and '.join(run.devices)}: {amount}, {outcome}."


def _row(name: str, model: str, layers: str, cases: ArchitectureCases | None) -> Row:
    purpose = "sparse embeddings" if name == SPLADE else _PURPOSES[purpose_of(name)]
    return Row(name, purpose, model.partition(":")[0], layers, cases)


def _facts(row: Row) -> dict[str, Any]:
    parity = None
    if row.cases is not None:
        counts = {"num_passed": row.cases.num_passed, "num_failed": row.cases.num_failed}
        parity = {**counts, **msgspec.to_builtins(row.cases)}
    return {
        "architecture": row.architecture,
        "purpose": row.purpose,
        "module": row.module,
        "layers": row.layers,
        "parity": parity,
    }


def _table(rows: list[Row]) -> str:
    cells = [("architecture", "for", "module", "layers", "parity")]
    cells += [(row.architecture, row.purpose, row.module, row.layers, row.parity) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in padded)
