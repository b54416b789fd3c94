import subprocess
import sys

import pytest

import octavo
from octavo.cli.main import COMMANDS, main
from octavo.config import EngineConfig, ServerSettings
from octavo.engine.child import EngineChild

HEAVY = ("torch", "transformers", "fastapi", "uvicorn", "tokenizers", "httpx", "prompt_toolkit", "numpy", "msgspec")


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    modules = modules_after("from octavo.cli.main import main; main(['--help'])")
    assert not modules.intersection(HEAVY)


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["chat"],
        ["run-batch"],
        ["plan"],
        ["profile"],
        ["models"],
        *(["bench", name] for name in ("serve", "engine", "kernels")),
    ],
)
def test_help_of_a_command_imports_no_model_code(command: list[str]) -> None:
    code = f"from octavo.cli.main import main\ntry:\n    main({[*command, '--help']!r})\nexcept SystemExit: pass"
    assert not modules_after(code).intersection({"torch", "transformers", "fastapi", "httpx"})


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == octavo.__version__
    assert main([]) == main(["--help"]) == 0
    assert all(name in capsys.readouterr().out for name in ("serve",))


@pytest.mark.parametrize(
    "command",
    [
        *([name] for name in COMMANDS),
        *(["bench", name] for name in ("latency", "serve", "engine", "kernels", "results")),
    ],
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if command == ["bench"]:
        assert main(["bench", "--help"]) == 0
    else:
        with pytest.raises(SystemExit) as stop:
            main([*command, "--help"])
        assert stop.value.code == 0
    assert "usage: octavo " + " ".join(command) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serv"], "Did you mean serve?"),
        (["bench", "latenzy"], "Did you mean latency?"),
        (["serve"], "Name a model"),
        (["serve", "m", "--prot", "1"], "Did you mean --port?"),
        (["chat", "--max-num-seqs", "3"], "name one as MODEL"),
        (["chat", "m", "--url", "http://x/v1"], "not both"),
    ],
)
def test_errors_are_one_line_and_status_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("octavo: error: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_debugging_shows_the_traceback() -> None:
    with pytest.raises(octavo.errors.ConfigError):
        main(["serve", "--log-level", "debug"])


def test_serve_hands_the_settings_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import octavo.api.launch

    seen = []

    def run_server(config: EngineConfig, server: ServerSettings, child: EngineChild) -> int:
        assert not child.has_ended
        seen.append((config, server, child))
        return 7

    monkeypatch.setattr(octavo.api.launch, "run_server", run_server)
    assert main(["serve", "some-model", "--max-num-seqs", "4", "--port", "9000"]) == 7
    ((config, server, child),) = seen
    assert (config.model.model, config.scheduler.max_num_seqs, server.port) == ("some-model", 4, 9000)
    assert child.has_ended  # nobody launched it
