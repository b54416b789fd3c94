"""Writes what a run of the parity tests showed of each architecture, as a pytest plug-in.

``OCTAVO_PARITY_RECORD`` names the file (``make test-parity``: the one that ``octavo models`` reads). The plug-in looks
at the engines that a test starts, so that no list says which test is about which architecture. A run of a part of the
tests says so in its record, and never replaces a whole one.
"""

import datetime
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import octavo
from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.hub import ModelConfig, find_model
from octavo.hub.families.generic import GenericFields
from octavo.hub.families.generic_encoder import LibraryEncoderFields
from octavo.hub.families.registry import FAMILIES
from octavo.hub.json_file import read_json
from octavo.hub.purpose import as_generative_config
from octavo.llm_engine import LLMEngine
from octavo.models.parity import ArchitectureCases, Cases, ParityRecord, ParityRun, read_record, write_record

FOLDER = Path(__file__).parent
VARIABLE = "OCTAVO_PARITY_RECORD"
# What make test-parity leaves out.
NOT_OF_THE_TABLE = ("long", "slow")
# Properties of tests' reports.
_HERE, _STARTED, _NOT_STARTED, _DEVICE = "parity", "parity-started", "parity-not-started", "parity-device"
_COUNTS = "parity_counts"


def register_recorder(config: pytest.Config) -> None:
    """Let a run be recorded if a file is named."""
    path = os.environ.get(VARIABLE)
    if path:
        watcher = Watcher()
        config.pluginmanager.register(watcher)
        if not hasattr(config, "workerinput"):  # of pytest-xdist's processes, one writes
            config.pluginmanager.register(Recorder(Path(path), watcher))


class Watcher:
    """In each process that runs tests: notes which models a test starts, and how many tests there are."""

    def __init__(self) -> None:
        self.num_selected = self.num_left_out = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.num_left_out += sum(
            is_here(item) and not any(map(item.get_closest_marker, NOT_OF_THE_TABLE)) for item in items
        )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.num_selected = sum(map(is_here, session.items))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if not is_here(item):
            return (yield)
        item.user_properties.append((_HERE, True))
        with pytest.MonkeyPatch.context() as patch:
            start = LLMEngine.__init__

            def start_and_note(engine: LLMEngine, settings: EngineConfig, **options: Any) -> None:
                try:
                    start(engine, settings, **options)
                except Exception:
                    item.user_properties += [(_NOT_STARTED, list(named)) for named in _named(settings)]
                    raise
                _, config = find_model(settings)
                item.user_properties.append((_STARTED, list(_implementation(config))))
                item.user_properties.append((_DEVICE, engine.core.info.device))

            patch.setattr(LLMEngine, "__init__", start_and_note)
            return (yield)

    @property
    def counts(self) -> list[int]:
        return [self.num_selected, self.num_left_out]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_COUNTS] = self.counts


class Recorder:
    """In the process that has all reports: makes a record of them, and writes it.

    Args:
        path: where to.
        watcher: of this process; with pytest-xdist, those of its workers count instead.
    """

    def __init__(self, path: Path, watcher: Watcher) -> None:
        self.path = path
        self.message = ""
        self._before = read_record(path)
        self._watcher = watcher
        self._counts: list[int] = []
        self._outcomes: dict[str, str] = {}
        self._devices = set[str]()
        self._models: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (_HERE, True) not in map(tuple, report.user_properties):
            return
        # The worst of setup, call and teardown.
        if report.failed or self._outcomes.get(report.nodeid, "passed") == "passed":
            self._outcomes[report.nodeid] = report.outcome
        # An engine that does not start is the failure of a test, or what the test is about.
        names = (_STARTED, _NOT_STARTED) if self._outcomes[report.nodeid] == "failed" else (_STARTED,)
        for name, value in report.user_properties:
            if name in names:
                self._models[report.nodeid].add(tuple(value))
            if name == _DEVICE:
                self._devices.add(value)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._counts = getattr(node, "workeroutput", {}).get(_COUNTS, self._counts)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        num_selected, num_left_out = self._counts or self._watcher.counts
        is_whole = covers_all(session.config) and num_left_out == 0 and len(self._outcomes) == num_selected
        record = self._record(is_whole)
        if not record.octavo and not record.transformers:
            self.message = "no model was run, so nothing is recorded"
        elif self._before is not None and self._before.run.is_whole and not is_whole:
            self.message = f"a part of the tests ran; {self.path} keeps the whole run of {self._before.run.date}"
        else:
            write_record(record, self.path)
            self.message = f"{self.path} has {'a whole run' if is_whole else 'a run of a part of the tests'}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"parity: {self.message}")

    def _record(self, is_whole: bool) -> ParityRecord:
        outcomes = list(self._outcomes.values())
        run = ParityRun(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            octavo=octavo.__version__,
            torch=str(torch.__version__),
            transformers=transformers.__version__,
            devices=sorted(self._devices),
            is_whole=is_whole,
            num_run=len(outcomes) - outcomes.count("skipped"),
            num_failed=outcomes.count("failed"),
        )
        return ParityRecord(run, self._cases_with("octavo"), self._cases_with("transformers"))

    def _cases_with(self, layers: str) -> dict[str, ArchitectureCases]:
        models = sorted(set().union(*self._models.values()))
        return {
            name: ArchitectureCases(self._cases(of, name, "passed"), self._cases(of, name, "failed"))
            for of, name in models
            if of == layers
        }

    def _cases(self, layers: str, name: str, outcome: str) -> Cases:
        cases: Cases = defaultdict(list)
        for nodeid in sorted(self._models):
            if self._outcomes[nodeid] == outcome and (layers, name) in self._models[nodeid]:
                path, _, test = nodeid.partition("::")
                cases[Path(path).name].append(test)
        return dict(cases)


def is_here(item: pytest.Item) -> bool:
    """Whether a test is one of the parity tests."""
    return item.path.is_relative_to(FOLDER)


def _implementation(config: ModelConfig) -> tuple[str, str]:
    """Whose layers a model has, and its architecture."""
    return "transformers" if isinstance(
        config.own, (GenericFields, LibraryEncoderFields)
    ) else "octavo", config.architecture


def _named(settings: EngineConfig) -> list[tuple[str, str]]:
    """The same of a model that does not start, even if its configuration is rejected; nothing if it has none."""
    model = settings.model
    try:
        return [_implementation(find_model(settings)[1])]
    except OctavoError:
        path = Path(model.model) / "config.json"
    if not path.is_file():
        return []
    raw = as_generative_config(read_json(path) | (model.hf_overrides or {}))
    name = str(raw.get("architectures", [""])[0])
    is_generic = model.model_impl == "transformers" or name not in FAMILIES
    return [("transformers" if is_generic else "octavo", name)]


def covers_all(config: pytest.Config) -> bool:
    """Whether the arguments of a run name all files of parity tests."""
    if config.getoption("ignore") or config.getoption("ignore_glob"):
        return False
    named = [(config.invocation_params.dir / argument).resolve() for argument in config.args]
    return any(path in (FOLDER, *FOLDER.parents) for path in named)
