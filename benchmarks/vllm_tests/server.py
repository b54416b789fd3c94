"""The stand-in for vLLM's server helper: the same interface, but the process is ``octavo serve``.

vLLM's class does the waiting, the stopping and the clients; replaced are the command line and what depends on vLLM's
engine or on a GPU.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.vllm_tests import rules


def serve_command(model: str, arguments: Sequence[str]) -> list[str]:
    """``octavo serve`` for what a test asks ``vllm serve`` for.

    Raises:
        pytest.skip.Exception: a rule says that Octavo or this machine cannot serve it.
    """
    stand_in = rules.stand_in(model, os.environ.get("PYTEST_CURRENT_TEST", ""))
    if stand_in.reason is not None:
        pytest.skip(stand_in.reason)
    reason = rules.reason_for_arguments(arguments)
    if reason is not None:
        pytest.skip(reason)
    flags = rules.translate(list(arguments), stand_in.max_model_len)
    if "--served-model-name" not in flags:
        flags += ["--served-model-name", model]
    return [sys.executable, "-m", "octavo.cli.main", "serve", stand_in.served, *stand_in.flags, *flags]


def install(utils: ModuleType) -> None:
    """Make the server classes of vLLM's ``tests.utils`` start Octavo."""

    def initialise(
        self: Any,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        seed: int | None = 0,
        auto_port: bool = True,
        max_wait_seconds: float | None = None,
        override_hf_configs: dict[str, Any] | None = None,
    ) -> None:
        arguments = list(vllm_serve_args)
        if override_hf_configs is not None:
            arguments += ["--hf-overrides", json.dumps(override_hf_configs)]
        if seed is not None:
            arguments += ["--seed", str(seed)]
        self.uds = rules.value_of(arguments, "--uds")
        if self.uds is None and rules.value_of(arguments, "--port") is None:
            arguments += ["--port", str(utils.get_open_port())]
        self.host = None if self.uds else rules.value_of(arguments, "--host") or "127.0.0.1"
        self.port = None if self.uds else int(rules.value_of(arguments, "--port") or 0)
        self.show_hidden_metrics = False
        self._shutdown_complete = False
        environment = {**os.environ, **rules.ENVIRONMENT, **(env_dict or {})}
        command = serve_command(model, arguments) + rules.flags_of_environment(env_dict or {})
        print(f"Starting: {' '.join(command)}")
        log = Path(tempfile.mkstemp(suffix=".log")[1])
        with log.open("wb") as output:
            self.proc = subprocess.Popen(
                command, env=environment, start_new_session=True, stdout=output, stderr=subprocess.STDOUT
            )
        self._register_active_server()
        try:
            self._wait_for_server(url=self.url_for("health"), timeout=max_wait_seconds or 120)
        except Exception as error:
            self._shutdown()
            text = log.read_text(encoding="utf-8", errors="replace").strip()
            print(text)
            raise RuntimeError(f"{error} {' / '.join(text.splitlines()[-3:])}") from None
        finally:
            log.unlink()

    utils.RemoteVLLMServer.__init__ = initialise
    utils.RemoteVLLMServer._wait_for_gpu_memory_release = lambda self, **_: None
    utils.RemoteOpenAIServer._get_process_termination_timeout = lambda self: 15.0
