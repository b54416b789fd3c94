"""Makes the transformers library's modules without memory for their parameters."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn

from octavo.hub.families.generic import library_config, not_served
from octavo.hub.model_config import ModelConfig
from octavo.models.generic.experts import EXPERTS

NO_INTERFACE = "its attention has no interface for other implementations"


def empty_model(config: ModelConfig, attention: str, device: str) -> Any:
    """The library's model: parameters on the meta device, buffers (rotary frequencies) on a device.

    Args:
        attention: name of a registered implementation of attention.
        device: of the buffers.

    Raises:
        UnsupportedModelError: the model has a recurrent state, or a configuration that is not its class's.
    """
    kind: Any = getattr(transformers, config.architecture)
    library = library_config(config.raw)
    kind = _decoder_of(kind, library, config.architecture)
    # Not the checkpoint's: Octavo's own layers know how weights are quantised.
    vars(library).pop("quantization_config", None)
    takes_pooler = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    options: dict[str, Any] = {"add_pooling_layer": False} if takes_pooler else {}
    own_experts = {"experts_implementation": EXPERTS} if kind._can_set_experts_implementation() else {}
    try:
        with torch.device(device), _parameters_on_meta():
            model = kind._from_config(
                library, attn_implementation=attention, dtype=torch.get_default_dtype(), **own_experts, **options
            )
    except KeyError as error:
        if error.args == (attention,):
            raise not_served(config.architecture, NO_INTERFACE) from error
        raise
    return model.eval().requires_grad_(False)


def _decoder_of(kind: Any, library: Any, architecture: str) -> Any:
    if kind._is_stateful:
        raise not_served(architecture, "it has a recurrent state")
    if not isinstance(library, kind.config_class):
        raise not_served(architecture, f"its configuration is of the type {library.model_type!r}")
    return kind


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """A context in which parameters lose their memory as soon as a module gets them."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
