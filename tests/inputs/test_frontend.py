"""What is read of a model before the engine is up."""

import pytest

from octavo.config import EngineConfig
from octavo.errors import ChatTemplateError
from octavo.inputs.frontend import Frontend


def test_a_malformed_template_is_refused_at_start() -> None:
    with pytest.raises(ChatTemplateError, match="malformed"):
        Frontend.load(EngineConfig.from_kwargs(model="bundled:smollm2"), "{% if %}")


def test_a_given_template_replaces_the_models_own() -> None:
    frontend = Frontend.load(EngineConfig.from_kwargs(model="bundled:smollm2"), "{{ messages[0].content }}!")
    assert frontend.chat_renderer is not None
    assert frontend.chat_renderer.render([{"role": "user", "content": "hi"}]).get("prompt") == "hi!"
