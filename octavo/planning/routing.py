"""Resolves ``enable_return_routed_experts``."""

from collections.abc import Sequence

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.hub.model_config import ModelConfig
from octavo.planning.memory import ModelSize
from octavo.records import CacheGroup, CapturedRouting


def resolve_routing(
    settings: EngineConfig, config: ModelConfig, model: ModelSize, groups: Sequence[CacheGroup]
) -> CapturedRouting | None:
    """How the experts that tokens choose are captured; None if they are not asked for.

    Raises:
        ConfigError: they cannot be.
    """
    if not settings.model.enable_return_routed_experts:
        return None
    reason = ""
    group = next((index for index, group in enumerate(groups) if group.spec.reach is None), None)
    if config.pooling is not None:
        reason = "is for generative models; this one is a pooling model"
    elif model.routed is None:
        reason = "is for mixtures of experts, and those that run as modules of transformers are not captured"
    elif settings.scheduler.speculative_config:
        reason = "does not go with speculative_config"
    elif group is None:
        reason = "needs a layer that attends to all tokens; this model has windows in all layers"
    if reason or group is None or model.routed is None:
        raise ConfigError(f"enable_return_routed_experts {reason}.")
    return CapturedRouting(group, config.num_layers, model.routed.num_chosen)
