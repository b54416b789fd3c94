from collections.abc import Generator

import pytest
from fake_openai import FakeServer, fake_openai


@pytest.fixture
def openai_server() -> Generator[FakeServer, None, None]:
    """A server with OpenAI's protocol that answers "Hello there!"."""
    with fake_openai() as server:
        yield server


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Nothing of the user's environment gets in, and no history is written to their home."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
