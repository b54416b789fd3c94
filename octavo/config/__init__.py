"""Typed, documented settings; flags, docs and planning derive from them."""

from octavo.config.engine_config import EngineConfig
from octavo.config.settings import (
    CacheSettings,
    DeviceSettings,
    LoadSettings,
    LoggingSettings,
    ModelSettings,
    SchedulerSettings,
    ServerSettings,
)
