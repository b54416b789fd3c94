"""Settings resolved once against model and device, each with its reason; memory and speed-limit estimates."""

from octavo.planning.capacity import fit_cache, resize_cache
from octavo.planning.plan import make_plan

__all__ = ["fit_cache", "make_plan", "resize_cache"]
