"""What is read of a model before the engine is up."""

from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.errors import ChatTemplateError
from octavo.inputs.frontend import TextFrontend


def test_a_malformed_template_is_refused_at_start() -> None:
    with pytest.raises(ChatTemplateError, match="malformed"):
        TextFrontend.load(EngineConfig.from_kwargs(model="bundled:smollm2"), "{% if %}")


def test_a_given_template_replaces_the_models_own() -> None:
    frontend = TextFrontend.load(EngineConfig.from_kwargs(model="bundled:smollm2"), "{{ messages[0].content }}!")
    assert frontend.chat_renderer is not None
    assert frontend.chat_renderer.render([{"role": "user", "content": "hi"}]).get("prompt") == "hi!"


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ({}, {"temperature": 0.2, "top_p": 0.9}),
        ({"generation_config": "vllm"}, {}),
        ({"override_generation_config": {"top_p": 0.5}}, {"temperature": 0.2, "top_p": 0.5}),
    ],
)
def test_the_bundled_model_brings_the_defaults_of_its_card(settings: dict[str, Any], params: dict[str, Any]) -> None:
    frontend = TextFrontend.load(EngineConfig.from_kwargs(model="bundled:smollm2", **settings))
    assert frontend.default_params == params
