"""Gets vLLM's tests: downloads the source distribution through pip, checks its hash, unpacks tests and examples."""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

VERSION = "0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
UNPACKED = ("tests", "examples")
_NO_BUILD = Path(__file__).parent / "no_build"


class SourceError(Exception):
    """vLLM's source distribution could not be had."""


def default_cache() -> Path:
    """The folder for downloads: ``$XDG_CACHE_HOME/octavo/vllm-tests``, or the same under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "vllm-tests"


def fetch(cache: Path) -> Path:
    """The unpacked source distribution, downloaded into the cache unless it is there.

    Args:
        cache: a folder outside the repository.

    Raises:
        SourceError: pip could not download it, or its hash differs.
    """
    target = cache / f"vllm-{VERSION}"
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _unpack(_download(Path(scratch)), Path(scratch))
            (Path(scratch) / target.name).rename(target)
    return target


def _download(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"vllm=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(requirements)]
    paths = [str(_NO_BUILD), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NO_BUILD_NAME": "vllm",
        "NO_BUILD_VERSION": VERSION,
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        raise SourceError(f"pip could not download vllm {VERSION}: {done.stderr.strip()[-2000:]}")
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar if PurePosixPath(member.name).parts[1:2] in [(name,) for name in UNPACKED]]
        tar.extractall(folder, wanted, filter="data")
