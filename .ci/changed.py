"""Print the tests of what changed since a commit, as paths for pytest; nothing if that cannot be told.

    python .ci/changed.py [BASE]

BASE defaults to the branch point from origin/main or main, or on that branch to the commit before. The tree under
tests/ mirrors octavo/, so a changed module maps to its package's tests; native/ maps to those of the kernels. Changes
below everything (records, config, errors), to what all tests share or to many packages would select nearly all tests:
nothing is printed then, since the sample of all of them runs anyway and .ci/full runs the whole. So it is with the
tables of all models, which take longer than everything else: `make test-parity` runs them.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALSO = {
    "execution": ["tests/test_batch_independence.py"],
    "kernels": ["tests/execution"],
    "native": ["tests/execution", "tests/platforms"],
    "quantization": ["tests/models"],
}
TABLES = ("tests", "parity")
MOST, MOST_FOLDERS = 12, 4
"""Paths, and folders among them; more of them are not selected at all: the whole of five packages takes longer than
the sample of all."""


def git(*arguments: str) -> str | None:
    """What git prints; None if it fails or is not installed."""
    try:
        ended = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()


def base() -> str | None:
    """The commit that the landing starts from."""
    head = git("rev-parse", "HEAD")
    for branch in ("origin/main", "main"):
        found = git("merge-base", "HEAD", branch)
        if found and found != head:
            return found
    return git("rev-parse", "HEAD~1")


def tests_of(path: str) -> str | None:
    """The test file or folder for a changed file."""
    match Path(path).parts:
        case ("native", _):
            return "tests/kernels"
        case ("tests", _, _, *_) if Path(path).name.startswith("test_"):
            return path
        case ("tests", package, _, *_):
            return f"tests/{package}"
        case ("tests", name) if name.startswith("test_"):
            return path
        case ("octavo", package, inner, _, *_) if (ROOT / "tests" / package / inner).is_dir():
            return f"tests/{package}/{inner}"
        case ("octavo", package, _, *_):
            return f"tests/{package}"
        case ("octavo", module):
            return f"tests/test_{module}"
    return None


def package_of(path: str) -> str:
    """The package of a changed file, or the folder of the compiled kernels; empty for files of neither."""
    match Path(path).parts:
        case ("octavo", package, _, *_):
            return package
        case ("native", _):
            return "native"
    return ""


def select(paths: list[str]) -> list[str]:
    """Existing tests for changed files, without those inside others, files first; none if they are too many."""
    wanted = [test for path in paths if (test := tests_of(path))]
    wanted += [test for package in {package_of(path) for path in paths} for test in ALSO.get(package, [])]
    found = {test for test in wanted if (ROOT / test).exists() and Path(test).parts[:2] != TABLES}
    outer = [test for test in found if not any(str(parent) in found for parent in Path(test).parents)]
    outer.sort(key=lambda test: (not test.endswith(".py"), test))
    num_folders = sum(not test.endswith(".py") for test in outer)
    return outer if len(outer) <= MOST and num_folders <= MOST_FOLDERS else []


def main() -> None:
    start = sys.argv[1] if len(sys.argv) > 1 else base()
    changed = git("diff", "--name-only", start) if start else None
    print(*select((changed or "").splitlines()))


if __name__ == "__main__":
    main()
