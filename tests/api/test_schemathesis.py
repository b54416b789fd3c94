"""Whatever the documentation page lets a client send, and more, no route fails: refusals are sentences."""

from collections import Counter
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from running_server import PATIENCE, RunningServer, start
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.generation import GenerationMode
from short_engine import EVERYTHING, NUM_NUMBERS, ShortEngine

from octavo.api.app import build_app
from octavo.config import ServerSettings
from octavo.records import PoolingSpec

MAX_EXAMPLES = 6
CASES_BETWEEN = 4
"""Of the cases that go through all fields and limits one by one, ten thousand, one in so many is sent."""

pytestmark = pytest.mark.long


SPEC = PoolingSpec(
    ["embed", "classify", "token_embed", "token_classify"], "LAST", False, NUM_NUMBERS, num_labels=NUM_NUMBERS
)
SCHEMA = schemathesis.openapi.from_dict(
    build_app(ShortEngine(), ServerSettings(**EVERYTHING)).openapi(),
    config=SchemathesisConfig(
        projects=ProjectsConfig(
            default=ProjectConfig(
                generation=GenerationConfig(
                    modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE], deterministic=True
                )
            )
        )
    ),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, RunningServer]]:
    """A generative model and a pooling model."""
    running = {"text": start(ShortEngine(), **EVERYTHING), "vectors": start(ShortEngine(SPEC), **EVERYTHING)}
    yield running
    for server in running.values():
        server.stop()
        server.thread.join(10)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Connections that are used again."""
    with requests.Session() as session:
        yield session


@pytest.fixture(scope="module")
def num_cases() -> Counter[str]:
    """Cases made, by operation."""
    return Counter()


def is_covering(case: schemathesis.Case) -> bool:
    """Whether a case is one of a row that goes through the schema, not a random one."""
    return case.meta is not None and case.meta.phase.name == "coverage"


@SCHEMA.parametrize()
@settings(
    max_examples=MAX_EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
def test_no_route_fails(
    case: schemathesis.Case, servers: dict[str, RunningServer], session: requests.Session, num_cases: Counter[str]
) -> None:
    num_cases[case.operation.label] += 1
    if is_covering(case) and num_cases[case.operation.label] % CASES_BETWEEN:
        return
    kinds = ["text", "vectors"] if {"pooling", "scoring"} & set(case.operation.tags or ()) else ["text"]
    for kind in kinds:
        response = case.call(base_url=servers[kind].url, session=session, timeout=PATIENCE)
        assert response.status_code < 500, (response.status_code, response.text, case.as_curl_command())
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["message"].endswith((".", "…")), error


def test_every_route_is_there() -> None:
    documented = {(case.ok().method.upper(), case.ok().path) for case in SCHEMA.get_all_operations()}
    assert {("POST", "/v1/chat/completions"), ("POST", "/v1/messages"), ("POST", "/update_weights")} <= documented
    assert len(documented) > 50
