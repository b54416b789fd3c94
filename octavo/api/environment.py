"""Settings of the server that vLLM's users keep in the environment."""

import os

import msgspec

from octavo.config import ServerSettings


def with_environment(settings: ServerSettings) -> ServerSettings:
    """The settings, with what ``VLLM_API_KEY`` and ``VLLM_SERVER_DEV_MODE`` add; flags win."""
    api_key = settings.api_key
    if not api_key and (from_environment := os.environ.get("VLLM_API_KEY")):
        api_key = [from_environment]
    is_dev = os.environ.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0")
    return msgspec.structs.replace(
        settings, api_key=api_key, enable_admin_endpoints=settings.enable_admin_endpoints or is_dev
    )
