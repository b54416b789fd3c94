"""``/server_info`` and ``/tokenizer_info``."""

import os
import platform
from typing import Any, Literal

import msgspec
from fastapi import APIRouter

from octavo import __version__
from octavo.api.frontend import Frontend
from octavo.engine.remote_control import RemoteControl

_SECRETS = frozenset({"hf_token", "api_key"})
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_HIDDEN = "(hidden)"


def tokenizer_info_router(frontend: Frontend) -> APIRouter:
    """The route that describes the tokenizer."""
    router = APIRouter(tags=["tokens"])

    @router.get("/tokenizer_info", summary="The tokenizer's special tokens and chat template.")
    async def tokenizer_info() -> dict[str, Any]:
        tokenizer = frontend.need_tokenizer()
        return {
            "tokenizer_class": type(tokenizer).__name__,
            "vocab_size": len(tokenizer),
            "model_max_length": frontend.engine.info.max_model_len,
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "pad_token": tokenizer.pad_token,
            "unk_token": tokenizer.unk_token,
            "chat_template": tokenizer.chat_template,
        }

    return router


def server_info_router(frontend: Frontend, control: RemoteControl) -> APIRouter:
    """The route that shows the settings, without secrets."""
    router = APIRouter(tags=["admin"])

    @router.get("/server_info", summary="The settings in force, as text or JSON.")
    async def server_info(config_format: Literal["text", "json"] = "text") -> dict[str, Any]:
        settings = {
            **msgspec.to_builtins(control.settings),
            "server": msgspec.to_builtins(frontend.settings),
        }
        settings = {name: _without_secrets(section) for name, section in settings.items()}
        lines = [f"{name}={value!r}" for section in settings.values() for name, value in section.items()]
        return {
            "vllm_config": settings if config_format == "json" else ", ".join(lines),
            "vllm_env": _environment(),
            "system_env": {
                "octavo": __version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "device": frontend.engine.info.device,
            },
        }

    return router


def _without_secrets(section: dict[str, Any]) -> dict[str, Any]:
    return {name: _HIDDEN if name in _SECRETS and value else value for name, value in section.items()}


def _environment() -> dict[str, str]:
    names = sorted(name for name in os.environ if name.startswith(("VLLM_", "OCTAVO_")))
    return {name: _HIDDEN if any(word in name for word in _SECRET_WORDS) else os.environ[name] for name in names}
