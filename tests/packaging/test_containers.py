"""The Dockerfiles, the compose file and the Kubernetes example name what exists."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import APIRoute

from octavo.api.admin.health import health_router
from octavo.cli.flags import ALL_SECTIONS, add_setting_flags, given_settings, server_settings
from octavo.cli.parser import Parser
from octavo.config import ServerSettings

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    logical = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.strip().partition(" ") for line in logical if line.strip())]


def serve_settings(arguments: list[str]) -> ServerSettings:
    """What ``octavo serve`` would read from arguments."""
    parser = Parser("octavo serve", "", "MODEL")
    add_setting_flags(parser, ALL_SECTIONS)
    return server_settings(given_settings(parser.parse(arguments), ALL_SECTIONS))


def kubernetes(kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "docker" / "kubernetes.yaml").read_text(encoding="utf-8"))
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_there_is_a_dockerfile_for_cpus_and_one_for_cuda() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_dockerfile_copies_exists_and_reaches_the_builder(dockerfile: Path) -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        shlex.split(rest)[:-1] for name, rest in instructions(dockerfile) if name == "COPY" and "--from" not in rest
    ]
    assert copied
    for source in (source.removeprefix("./") for sources in copied for source in sources):
        assert (ROOT / source).exists()
        assert source in sent


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_requirement_files_named_in_a_dockerfile_exist(dockerfile: Path) -> None:
    words = [word for name, rest in instructions(dockerfile) if name == "RUN" for word in rest.split()]
    named = [words[index + 1] for index, word in enumerate(words) if word == "--requirement"]
    assert named
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_serves_as_an_ordinary_user_and_is_watched(dockerfile: Path) -> None:
    last_stage = instructions(dockerfile)
    last_stage = last_stage[max(index for index, (name, _) in enumerate(last_stage) if name == "FROM") :]
    found = dict(last_stage)
    assert yaml.safe_load(found["ENTRYPOINT"]) == ["octavo", "serve"]
    assert int(found["USER"]) > 0  # a number, so that runAsNonRoot can be checked
    settings = ServerSettings()
    assert int(found["EXPOSE"]) == settings.port
    assert f"http://127.0.0.1:{settings.port}/health" in found["HEALTHCHECK"]
    assert f"HF_HOME={found['VOLUME']}/" in found["ENV"]


def test_the_watched_path_is_a_route() -> None:
    router = health_router(None)  # type: ignore[arg-type]
    assert "/health" in {route.path for route in router.routes if isinstance(route, APIRoute)}


def test_compose_services_build_from_files_that_exist_with_flags_that_exist(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"cpu", "gpu"}
    for service in compose["services"].values():
        assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert serve_settings([word.partition(":-")[2].rstrip("}") or word for word in service["command"]])
        assert [port.rsplit(":", 1)[1] for port in service["ports"]] == [str(ServerSettings().port)]
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in compose["volumes"]


def test_the_kubernetes_example_has_flags_probes_and_volumes_that_exist() -> None:
    pod = kubernetes("Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    settings = serve_settings(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.port}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings.shutdown_timeout > 0
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    claim = kubernetes("PersistentVolumeClaim")["metadata"]["name"]
    assert volumes["cache"]["persistentVolumeClaim"]["claimName"] == claim
    service = kubernetes("Service")["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] in ports


def test_the_pods_key_comes_from_a_secret_and_is_read() -> None:
    (container,) = kubernetes("Deployment")["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable["name"], "secret")
        assert server_settings({}).api_key == ["secret"]
    assert "secretKeyRef" in variable["valueFrom"]
