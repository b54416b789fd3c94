"""Answers survive whatever interrupts a batch."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.api.batch.answers import AnswerFile
from octavo.api.batch.lines import encode_answer, encode_refusal
from octavo.errors import ConfigError, RequestFailedError

IDS = [f"id-{index}" for index in range(6)]


def line_of(custom_id: str, is_good: bool = True) -> bytes:
    return encode_answer(custom_id, "r", 200, b'{"x":1}') if is_good else encode_refusal(custom_id, "r", "No.")


def keep(answers: AnswerFile, *ids: str, is_good: bool = True) -> None:
    async def run() -> None:
        await asyncio.gather(*(answers.add_answer(each, line_of(each, is_good), is_good) for each in ids))

    asyncio.run(run())


class Files:
    def __init__(self, folder: Path) -> None:
        self.output, self.part = folder / "out.jsonl", folder / "out.jsonl.part"

    def open(self, **options: Any) -> AnswerFile:
        return AnswerFile(self.output, self.part, IDS, **options)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_output_is_whole_and_in_order(files: Files) -> None:
    answers = files.open()
    keep(answers, *reversed(IDS))
    assert not files.output.exists()
    answers.write_output(IDS)
    answers.close()
    assert files.output.read_bytes() == b"".join(map(line_of, IDS))
    assert not files.part.exists()


def test_what_was_added_is_on_disk_at_once(files: Files) -> None:
    answers = files.open()
    keep(answers, "id-3", "id-1")
    assert sorted(files.part.read_bytes().splitlines(True)) == [line_of("id-1"), line_of("id-3")]
    answers.close()
    again = files.open()
    assert [each for each in IDS if each in again] == ["id-1", "id-3"]
    again.close()


@given(st.permutations(IDS), st.integers(0, 2000), st.binary(max_size=6))
def test_a_file_cut_anywhere_goes_on_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], cut: int, rubbish: bytes
) -> None:
    files = Files(tmp_path_factory.mktemp("cut"))
    lines = [line_of(each) for each in order]
    whole = b"".join(lines)
    cut = min(cut, len(whole))
    files.part.write_bytes(whole[:cut] + rubbish.replace(b"\n", b""))
    ends = [len(b"".join(lines[: index + 1])) for index in range(len(lines))]
    answers = files.open()
    kept = [each for each, end in zip(order, ends, strict=True) if end <= cut]
    assert [each for each in order if each in answers] == kept
    keep(answers, *(each for each in IDS if each not in answers))
    answers.write_output(IDS)
    answers.close()
    assert files.output.read_bytes() == b"".join(map(line_of, IDS))


def test_a_finished_output_counts_as_done(files: Files) -> None:
    files.output.write_bytes(line_of("id-2") + line_of("id-0") + line_of("id-4")[:20])
    answers = files.open()
    assert [each for each in IDS if each in answers] == ["id-0", "id-2"]
    keep(answers, *(each for each in IDS if each not in answers))
    answers.write_output(IDS)
    answers.close()
    assert files.output.read_bytes() == b"".join(map(line_of, IDS))


@pytest.mark.parametrize("name", ["output", "part"])
def test_answers_to_other_requests_are_not_overwritten(files: Files, name: str) -> None:
    path: Path = getattr(files, name)
    path.write_bytes(line_of("id-1") + line_of("of another batch"))
    with pytest.raises(ConfigError, match="of another batch"):
        files.open()
    assert path.read_bytes() == line_of("id-1") + line_of("of another batch")


def test_a_file_of_something_else_is_not_overwritten(files: Files) -> None:
    files.output.write_text("my thesis\n")
    with pytest.raises(ConfigError, match="line 1, is not an answer"):
        files.open()
    assert files.output.read_text() == "my thesis\n"
    assert not files.part.exists()
    answers = files.open(overwrite=True)
    keep(answers, *IDS)
    assert files.output.read_text() == "my thesis\n", "until the new one is whole"
    answers.write_output(IDS)
    answers.close()
    assert files.output.read_bytes() == b"".join(map(line_of, IDS))


@pytest.mark.parametrize("name", ["output", "part"])
def test_errors_are_asked_again_on_demand(files: Files, name: str) -> None:
    getattr(files, name).write_bytes(b"".join(line_of(each, each != "id-3") for each in IDS))
    answers = files.open()
    assert (len(answers), answers.num_failed) == (6, 1)
    answers.close()
    answers = files.open(retry_failed=True)
    assert (len(answers), answers.num_failed) == (5, 0)
    keep(answers, "id-3")
    answers.write_output(IDS)
    answers.close()
    assert files.output.read_bytes() == b"".join(map(line_of, IDS))


def test_a_second_error_counts_once(files: Files) -> None:
    answers = files.open(retry_failed=True)
    keep(answers, "id-3", is_good=False)
    assert (len(answers), answers.num_failed) == (1, 1)
    answers.close()


def test_two_runs_do_not_share_a_file(files: Files) -> None:
    answers = files.open()
    keep(answers, "id-1")
    with pytest.raises(ConfigError, match="Another run"):
        files.open(overwrite=True)
    answers.close()
    again = files.open()
    assert "id-1" in again
    again.close()


def test_a_run_without_answers_leaves_no_file(files: Files) -> None:
    files.open().close()
    assert not files.part.exists()


def test_a_full_disk_is_told_and_earlier_answers_stay(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = files.open()
    keep(answers, "id-1")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("octavo.api.batch.answers.os.fsync", fail)
        with pytest.raises(RequestFailedError, match="No space left"):
            keep(answers, "id-2")
    answers.close()
    again = files.open()
    assert "id-1" in again
    again.close()
