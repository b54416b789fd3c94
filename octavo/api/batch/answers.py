"""The file that collects a batch's answers, and from which an interrupted batch resumes."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from octavo.api.batch.lines import AnswerHead
from octavo.errors import ConfigError, RequestFailedError

_HEADS = msgspec.json.Decoder(AnswerHead)


class AnswerFile:
    """Answers by id in an append-only file; those that :meth:`add_answer` took are on disk.

    The output file itself comes into being at the end, whole and in the input's order.

    Args:
        output: the output file. If it exists, its answers count as done.
        part: where answers are gathered. If it exists, an earlier run was interrupted, and its answers count as done.
        retry_failed: ask requests again whose answer is an error.
        overwrite: forget both files; the output stays as it is until the new one is whole.

    Raises:
        ConfigError: a file is not a batch's output, holds answers to other requests, or is in use by another run.
    """

    def __init__(
        self,
        output: Path,
        part: Path,
        wanted: Iterable[str],
        *,
        retry_failed: bool = False,
        overwrite: bool = False,
    ) -> None:
        self._output = output
        self._part = part
        self._wanted = set(wanted)
        self._retry_failed = retry_failed
        self._offsets: dict[str, int] = {}
        self._failed: set[str] = set()
        self._pending: list[tuple[str, bytes, bool]] = []
        self._lock = asyncio.Lock()
        self._file = _open_locked(part)
        try:
            if overwrite:
                self._file.truncate(0)
            else:
                self._repair()
                self._take_over()
        except BaseException:
            self.close()
            raise

    def __contains__(self, custom_id: str) -> bool:
        return custom_id in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def num_failed(self) -> int:
        """How many of the answers are errors."""
        return len(self._failed)

    async def add_answer(self, custom_id: str, line: bytes, is_good: bool) -> None:
        """Keep an answer; returns when it is on disk. Answers that come at the same time share a write.

        Raises:
            RequestFailedError: the disk is full or broken.
        """
        self._pending.append((custom_id, line, is_good))
        async with self._lock:
            batch, self._pending = self._pending, []
            if not batch:
                return  # another call has already written this line with its own
            writing = asyncio.ensure_future(asyncio.to_thread(self._write, batch))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait({writing})
                raise
            except OSError as error:
                raise RequestFailedError(f"Cannot write to {self._part}: {error.strerror or error}.") from None

    def write_output(self, order: Iterable[str]) -> None:
        """Make the output file of the answers, in the order of ``order``, and remove the part file.

        Raises:
            RequestFailedError: the file cannot be written.
        """
        draft = self._output.with_name(self._output.name + ".tmp")
        try:
            with draft.open("wb") as file:
                for custom_id in order:
                    self._file.seek(self._offsets[custom_id])
                    file.write(self._file.readline())
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._output)
            _sync_folder(self._output.parent)
            self._part.unlink()
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise RequestFailedError(f"Cannot write {self._output}: {error.strerror or error}.") from None

    def close(self) -> None:
        """Close the file, which stays for a later run unless it is empty or :meth:`write_output` is done."""
        if not self._offsets and not self._file.closed:
            with contextlib.suppress(FileNotFoundError):
                self._part.unlink()
        self._file.close()

    def _write(self, batch: list[tuple[str, bytes, bool]]) -> None:
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(b"".join(line for _, line, _ in batch))
        self._file.flush()
        os.fsync(self._file.fileno())
        for custom_id, line, is_good in batch:
            self._note(custom_id, offset, is_good)
            offset += len(line)

    def _note(self, custom_id: str, offset: int, is_good: bool) -> None:
        self._offsets[custom_id] = offset
        (self._failed.discard if is_good else self._failed.add)(custom_id)

    def _repair(self) -> None:
        """Read the answers of an earlier run, and cut off an incomplete last line."""
        end = 0
        for line in iter(self._file.readline, b""):
            head = _read_head(line)
            if head is None:
                break
            self._check_wanted(head, self._part)
            self._remember(head, end)
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def _take_over(self) -> None:
        """Copy answers of a finished output, whose input may have grown since."""
        if not self._output.exists():
            return
        with self._output.open("rb") as file:
            for number, line in enumerate(file, 1):
                head = _read_head(line)
                if head is None:
                    if number > 1 and not file.read(1):
                        break  # half a line at the end: its request is asked again
                    raise ConfigError(
                        f"{self._output}, line {number}, is not an answer of a batch. Name another output file, or "
                        "--overwrite this one."
                    )
                self._check_wanted(head, self._output)
                if head.custom_id not in self._offsets:
                    self._remember(head, self._file.seek(0, os.SEEK_END))
                    if head.custom_id in self._offsets:
                        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _remember(self, head: AnswerHead, offset: int) -> None:
        if head.is_good or not self._retry_failed:
            self._note(head.custom_id, offset, head.is_good)

    def _check_wanted(self, head: AnswerHead, path: Path) -> None:
        if head.custom_id not in self._wanted:
            raise ConfigError(
                f"{path} holds the answer to {head.custom_id[:100]!r}, which the input does not ask. Name another "
                "output file, or --overwrite this one."
            )


def _read_head(line: bytes) -> AnswerHead | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return _HEADS.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _open_locked(part: Path) -> BinaryIO:
    try:
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
    except OSError as error:
        raise ConfigError(f"Cannot write {part}: {error.strerror or error}.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"Another run writes to {part} at this moment.") from None
    except OSError:
        pass  # a file system without locks
    return file


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
