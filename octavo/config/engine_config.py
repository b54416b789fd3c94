"""Settings by name → an :class:`EngineConfig`: sections are filled and every value is checked."""

import difflib
import logging
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from octavo.config.environment import environment_warning, settings_from_environment
from octavo.config.settings import (
    CacheSettings,
    DeviceSettings,
    LoadSettings,
    LoggingSettings,
    ModelSettings,
    SchedulerSettings,
    ServerSettings,
)
from octavo.config.values import explain_value
from octavo.config.vllm_arguments import translate
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)


class EngineConfig(msgspec.Struct, kw_only=True):
    """All settings of one engine."""

    model: ModelSettings
    load: LoadSettings = msgspec.field(default_factory=LoadSettings)
    cache: CacheSettings = msgspec.field(default_factory=CacheSettings)
    scheduler: SchedulerSettings = msgspec.field(default_factory=SchedulerSettings)
    device: DeviceSettings = msgspec.field(default_factory=DeviceSettings)
    logging: LoggingSettings = msgspec.field(default_factory=LoggingSettings)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> "EngineConfig":
        """Build from flat keyword arguments, named like the settings, or like vLLM's.

        What is not given may come from environment variables (:mod:`octavo.config.environment`). Arguments of vLLM
        that change nothing are named in one warning, as are its variables.

        Raises:
            ConfigError: unknown name (with the nearest known one), wrong type, value out of bounds, or an argument of
                vLLM that needs a feature which is missing.
        """
        translation = translate(kwargs, has_server=False)
        settings = dict(translation.settings)
        for name in _SERVER_NAMES_OF_ENGINES & set(settings):
            translation.without_effect[name] = settings.pop(name)
        must_stop = bool(settings.get("fail_on_environ_validation"))
        for warning in (translation.warning(), environment_warning(is_error=must_stop)):
            if warning:
                logger.warning("%s", warning)
        return cls.from_settings({**settings, **settings_from_environment(_SECTION_OF, settings)})

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "EngineConfig":
        """Build from settings by name alone.

        Raises:
            ConfigError: as :meth:`from_kwargs`.
        """
        by_section: dict[str, dict[str, Any]] = {section: {} for section in ENGINE_SECTIONS}
        for name, value in settings.items():
            section = _SECTION_OF.get(name)
            if section is None:
                raise ConfigError(_explain_unknown(name))
            if value is not None:  # as if it were not given
                by_section[section][name] = str(value).removeprefix("torch.") if name == "dtype" else value
        config = cls(**{s: convert_section(ENGINE_SECTIONS[s], values) for s, values in by_section.items()})
        if config.model.trust_remote_code:
            logger.warning("trust_remote_code has no effect: Octavo runs no code from a model's folder.")
        return config


ENGINE_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "model": ModelSettings,
    "load": LoadSettings,
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "device": DeviceSettings,
    "logging": LoggingSettings,
}
_SECTION_OF: dict[str, str] = {
    name: section for section, struct in ENGINE_SECTIONS.items() for name in struct.__struct_fields__
}
# vLLM's engine arguments that are only the server's here: a name to show, a time to wait at the end.
_SERVER_NAMES_OF_ENGINES = {"served_model_name", "shutdown_timeout"}


def _explain_unknown(name: str) -> str:
    if name in ServerSettings.__struct_fields__:
        return f"{name!r} is a setting of the server: octavo serve has it, LLM does not."
    near = difflib.get_close_matches(name, _SECTION_OF, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no setting {name!r}.{hint}"


def _choices(struct: type[msgspec.Struct], name: str) -> str:
    """The values that a setting takes, as the rest of a sentence; empty if they are not a list of names."""
    hints = get_type_hints(struct)
    values = [
        value
        for part in (hints.get(name), *get_args(hints.get(name)))
        if get_origin(part) is Literal
        for value in get_args(part)
    ]
    return f"; it is one of {', '.join(map(str, values))}" if values else ""


def convert_section(struct: type[msgspec.Struct], values: dict[str, Any]) -> Any:
    """Check ``values`` against a section and build it.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds; the sentence names the setting.
    """
    for name, value in values.items():
        try:
            msgspec.convert({**_required(struct), name: value}, struct)
        except msgspec.ValidationError as error:
            reason = str(error).split(" - at ")[0] + _choices(struct, name) + explain_value(name, value)
            raise ConfigError(f"Setting {name!r} is wrong, got {value!r}: {reason}.") from None
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}.") from None


def _required(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: "" for field in msgspec.structs.fields(struct) if field.required}
