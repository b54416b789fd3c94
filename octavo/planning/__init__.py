"""Settings resolved once against model and device, each with its reason; memory and speed-limit estimates."""

from octavo.planning.plan import make_plan

__all__ = ["make_plan"]
