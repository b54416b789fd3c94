"""What the last run of the parity tests showed: ``parity.json`` beside this file, written by ``make test-parity``."""

from pathlib import Path

import msgspec

from octavo.errors import ConfigError

PATH = Path(__file__).with_name("parity.json")

Cases = dict[str, list[str]]
"""File of tests → its tests with their parameters, as ``test_prompts_in_chunks[llama]``."""


class ParityRun(msgspec.Struct, frozen=True, kw_only=True):
    """When and with what the tests ran.

    Attributes:
        date: of the run, as 2026-01-31, in UTC.
        octavo, torch, transformers: versions.
        devices: what the models ran on.
        is_whole: every test that ``make test-parity`` has was run.
        num_run: tests that ran; some start no model.
        num_failed: tests of these that failed.
    """

    date: str
    octavo: str
    torch: str
    transformers: str
    devices: list[str]
    is_whole: bool
    num_run: int
    num_failed: int


class ArchitectureCases(msgspec.Struct, frozen=True):
    """The tests that ran an architecture."""

    passed: Cases
    failed: Cases

    @property
    def num_passed(self) -> int:
        """How many passed."""
        return sum(map(len, self.passed.values()))

    @property
    def num_failed(self) -> int:
        """How many failed."""
        return sum(map(len, self.failed.values()))


class ParityRecord(msgspec.Struct, frozen=True):
    """A run of the parity tests.

    Attributes:
        run: the run.
        octavo: architecture → its tests with layers of Octavo.
        transformers: architecture → its tests with the transformers library's modules.
    """

    run: ParityRun
    octavo: dict[str, ArchitectureCases]
    transformers: dict[str, ArchitectureCases]


def read_record(path: Path = PATH) -> ParityRecord | None:
    """The last run; None if there was none.

    Raises:
        ConfigError: the file does not hold a record.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ParityRecord)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} does not hold a run of the parity tests: {error}.") from None


def write_record(record: ParityRecord, path: Path = PATH) -> None:
    """Write a run as indented JSON that is ready to be committed."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
