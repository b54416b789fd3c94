"""Builds the FastAPI app from routers and middleware."""

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import Receive, Scope, Send

from octavo import __version__
from octavo.api.admin.control import control_router, pause_router
from octavo.api.admin.health import health_router
from octavo.api.admin.info import server_info_router, tokenizer_info_router
from octavo.api.admin.invocations import invocations_router
from octavo.api.admin.tokens import tokens_router
from octavo.api.admin.weights import weights_router
from octavo.api.anthropic.messages import messages_router
from octavo.api.caller import CallerMiddleware
from octavo.api.console.router import console_paths, console_router
from octavo.api.docs_page import docs_router
from octavo.api.drain import Drain, DrainMiddleware
from octavo.api.engine import ServingEngine
from octavo.api.errors import install_error_handlers
from octavo.api.frontend import Frontend
from octavo.api.generative_scoring import generative_scoring_router
from octavo.api.middleware import ApiKeyMiddleware, LoadReportMiddleware, RequestIdMiddleware
from octavo.api.models import models_router
from octavo.api.openai.chat import chat_router
from octavo.api.openai.chat_batch import chat_batch_router
from octavo.api.openai.completions import completions_router
from octavo.api.pooling.router import NoTextMiddleware, pooling_router
from octavo.api.responses.router import responses_router
from octavo.api.scale_out.generate import generate_router
from octavo.api.scale_out.render import derender_router, render_router
from octavo.api.watched import SERVER_SEND
from octavo.config import ServerSettings
from octavo.engine.remote_control import RemoteControl
from octavo.errors import ConfigError

ROUTERS = (
    health_router,
    tokens_router,
    models_router,
    completions_router,
    chat_router,
    chat_batch_router,
    messages_router,
    render_router,
    generate_router,
    derender_router,
    generative_scoring_router,
    pooling_router,
    responses_router,
)


class App(FastAPI):
    """FastAPI that puts the server's own ``send`` into the scope, for streams.

    Attributes:
        sends_directly: whether it does; false with custom middleware, which would not see the bodies otherwise.
    """

    sends_directly = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _accept_root_path(scope)
        if self.sends_directly:
            scope[SERVER_SEND] = send
        await super().__call__(scope, receive, send)


def _accept_root_path(scope: Scope) -> None:
    """Let a request through that still has the prefix which a proxy was to strip: uvicorn put it there again."""
    root = scope.get("root_path", "")
    if root and scope["path"].startswith(f"{root}{root}/"):
        scope["path"] = scope["path"].removeprefix(root)
        scope["raw_path"] = scope["raw_path"].removeprefix(root.encode())


def build_app(engine: ServingEngine, settings: ServerSettings, drain: Drain | None = None) -> FastAPI:
    """The ASGI app that serves ``engine``.

    Args:
        engine: started before the first request comes.
        drain: shared with the server, which ends requests through it.
    """
    frontend = Frontend(engine, settings, drain or Drain())
    app = App(
        title="Octavo",
        version=__version__,
        openapi_url=None if settings.disable_fastapi_docs else "/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    for make_router in ROUTERS:
        app.include_router(make_router(frontend))
    if settings.enable_tokenizer_info_endpoint:
        app.include_router(tokenizer_info_router(frontend))
    if settings.enable_admin_endpoints:
        _add_admin_routes(app, frontend)
    if not settings.disable_fastapi_docs:
        app.include_router(docs_router())
    app.include_router(invocations_router(frontend, app))
    open_paths = {"/health", *settings.no_auth_paths}
    if not settings.disable_console:
        app.include_router(console_router(frontend))
        open_paths |= console_paths()
    install_error_handlers(app)
    # Middleware added later wraps what was added before.
    if engine.info.pooling is not None:
        app.add_middleware(NoTextMiddleware)
    app.add_middleware(
        CallerMiddleware,
        fair_share=settings.fair_share,
        num_keys=len(settings.api_key or ()),
        max_seconds=settings.request_deadline,
    )
    app.add_middleware(LoadReportMiddleware, metrics=engine.metrics)
    app.add_middleware(DrainMiddleware, drain=frontend.drain)
    if settings.api_key:
        app.add_middleware(ApiKeyMiddleware, keys=settings.api_key, open_paths=open_paths)
    if settings.enable_request_id_headers:
        app.add_middleware(RequestIdMiddleware)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods or ["*"],
            allow_headers=settings.allowed_headers or ["*"],
            allow_credentials=settings.allow_credentials,
        )
    app.sends_directly = not settings.middleware
    add_plugins(app, settings.middleware)
    return app


def _add_admin_routes(app: FastAPI, frontend: Frontend) -> None:
    control = frontend.engine
    if not isinstance(control, RemoteControl):
        raise ConfigError("This engine cannot be controlled from outside; leave enable_admin_endpoints off.")
    routers = [control_router(control), server_info_router(frontend, control)]
    if frontend.engine.info.pooling is None:
        # Reinforcement learning concerns generative models.
        routers += [pause_router(frontend, control), weights_router(frontend, control)]
    for router in routers:
        app.include_router(router)


def add_plugins(app: FastAPI, names: Sequence[str]) -> None:
    """Put middleware around an app, each around those before.

    Args:
        names: as ``package.module.Name`` or ``package.module:Name``: an ASGI middleware class, or an async function of
            a request and ``call_next``.
    """
    for name in names:
        found = _find_plugin(name)
        is_class: bool = inspect.isclass(found)
        if is_class:
            app.add_middleware(found)
        elif inspect.iscoroutinefunction(found):
            app.add_middleware(BaseHTTPMiddleware, dispatch=found)
        else:
            raise ConfigError(f"The middleware {name!r} is neither a class nor an async function.")


def _find_plugin(name: str) -> Any:
    module_name, _, attribute = name.rpartition(":" if ":" in name else ".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"The middleware {name!r} cannot be imported: {error}.") from None
