"""Results name the commit they were measured at, also where only an archive of it was at hand."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ASK = "from octavo.cli.bench_report import commit; print(commit())"


def commit_in(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", ASK], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_archive_knows_its_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, check=True).stdout

    try:
        head = git("rev-parse", "--short", "HEAD").decode().strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a checkout and git; ran in one")
    archive = git("archive", "HEAD", ".git_archival.txt", "octavo/__init__.py", "octavo/errors.py", "octavo/cli")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tmp_path, filter="data")
    assert commit_in(tmp_path) == head
    (tmp_path / ".git_archival.txt").write_text((REPOSITORY / ".git_archival.txt").read_text())
    assert commit_in(tmp_path) == "None"
