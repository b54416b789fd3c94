"""Copy the web console's libraries from npm, or verify the copies: ``python tools/vendor_web.py fetch|verify``.

``octavo/api/console/static/vendor/manifest.json`` names each package, its version and licence, and for each file its
place in the package and its SHA-256. ``fetch`` replaces the copies and writes the hashes; change a version in the
manifest first. ``verify`` fetches the packages again and fails if any copy differs. Both need ``npm`` and the network.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parent.parent / "octavo" / "api" / "console" / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"


def unpack(name: str, version: str, folder: Path) -> dict[str, bytes]:
    """The files of a package, by their path in it.

    Raises:
        subprocess.CalledProcessError: npm cannot fetch it.
    """
    spec = f"{name}@{version}"
    subprocess.run(["npm", "pack", "--silent", "--pack-destination", str(folder), spec], check=True, stdout=sys.stderr)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as members:
        return {
            member.name.removeprefix("package/"): found.read()
            for member in members
            if member.isfile() and (found := members.extractfile(member)) is not None
        }


def package_files(package: dict[str, Any]) -> dict[str, bytes]:
    """The files of a manifest's entry, by their path below the vendor folder.

    Raises:
        SystemExit: the package lacks one of them, or has another licence than the manifest says.
    """
    with tempfile.TemporaryDirectory() as folder:
        contents = unpack(package["name"], package["version"], Path(folder))
    licence = json.loads(contents["package.json"])["license"]
    if licence != package["licence"]:
        sys.exit(f"{package['name']} {package['version']} has the licence {licence}, not {package['licence']}.")
    missing = [entry["source"] for entry in package["files"] if entry["source"] not in contents]
    if missing:
        sys.exit(f"{package['name']} {package['version']} has no {', '.join(missing)}.")
    return {f"{package['folder']}/{entry['path']}": contents[entry["source"]] for entry in package["files"]}


def fetch(manifest: dict[str, Any]) -> None:
    """Replace all copies, and the hashes in the manifest."""
    for package in manifest["packages"]:
        files = package_files(package)
        for entry in package["files"]:
            body = files[f"{package['folder']}/{entry['path']}"]
            target = VENDOR / package["folder"] / entry["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
            entry["sha256"] = hashlib.sha256(body).hexdigest()
    MANIFEST.write_text(json.dumps(manifest, indent=1) + "\n")


def verify(manifest: dict[str, Any]) -> None:
    """Compare all copies with the packages.

    Raises:
        SystemExit: one differs.
    """
    for package in manifest["packages"]:
        for path, body in package_files(package).items():
            if (VENDOR / path).read_bytes() != body:
                sys.exit(f"{path} is not what {package['name']} {package['version']} holds.")
        print(f"{package['name']} {package['version']}: {len(package['files'])} files as published")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["fetch", "verify"])
    actions = {"fetch": fetch, "verify": verify}
    actions[parser.parse_args().action](json.loads(MANIFEST.read_text()))


if __name__ == "__main__":
    main()
