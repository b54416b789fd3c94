"""The libraries of the web page are what the manifest says, and all of them are in the package."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest

VENDOR = Path(str(files("octavo.api.console").joinpath("static", "vendor")))
PACKAGES = json.loads((VENDOR / "manifest.json").read_text())["packages"]
MAX_PAGE_BYTES = 1_200_000
LICENCES = {"MIT", "BSD-3-Clause", "Apache-2.0", "(MPL-2.0 OR Apache-2.0)"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package["folder"]))
def test_files_are_what_the_manifest_says(package: dict[str, str | list[dict[str, str]]]) -> None:
    assert package["licence"] in LICENCES
    entries = package["files"]
    assert isinstance(entries, list)
    assert any(entry["path"].startswith("LICENSE") for entry in entries)
    for entry in entries:
        body = (VENDOR / str(package["folder"]) / entry["path"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == entry["sha256"], entry["path"]


def test_no_other_file_lies_there() -> None:
    named = {f"{package['folder']}/{entry['path']}" for package in PACKAGES for entry in package["files"]}
    found = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert found == named | {"manifest.json"}


def test_the_page_stays_small() -> None:
    sizes = [path.stat().st_size for path in VENDOR.rglob("*") if path.is_file() and "swagger-ui" not in path.parts]
    assert sum(sizes) < MAX_PAGE_BYTES
