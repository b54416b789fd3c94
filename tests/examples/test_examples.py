"""Every example runs to its end as a user would run it; those that ask a server share one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
from ports import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OFFLINE = sorted([*EXAMPLES.glob("offline/*.py"), *EXAMPLES.glob("batch/*.py")])
ONLINE = sorted(path for path in EXAMPLES.glob("online/*.py") if not path.name.startswith("_"))
TIME_LIMIT = 180.0
KEY = "secret"
# What prints the order in which requests ended: who overtakes whom.
OVERTAKES = {"fair_share": ("quiet", "busy"), "priority": ("0", "5")}

pytestmark = pytest.mark.long


def environment(**more: str) -> dict[str, str]:
    """Offline, and one thread for a machine that runs other things as well."""
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": search_path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def run(path: Path, **more: str) -> str:
    """What an example prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()
    return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """``octavo serve`` with the settings file of the deployment example; its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = str(EXAMPLES / "deploy" / "server.yaml")
    command = [sys.executable, "-m", "octavo.cli.main", "serve", "--config", settings, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(VLLM_API_KEY=KEY))
    try:
        deadline = time.monotonic() + TIME_LIMIT
        while not _is_healthy(url):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("path", OFFLINE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_offline_examples(path: Path) -> None:
    run(path)


@pytest.mark.parametrize("path", ONLINE, ids=lambda path: path.stem)
def test_online_examples(path: Path, server: str) -> None:
    printed = run(path, OCTAVO_URL=server, OCTAVO_API_KEY=KEY)
    if path.stem in OVERTAKES:
        fast, slow = OVERTAKES[path.stem]
        assert printed.index(fast) < printed.rindex(slow)


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(OFFLINE) + len(ONLINE) >= 15
    assert [path.name for path in (*OFFLINE, *ONLINE) if f"({path.relative_to(EXAMPLES)})" not in index] == []
