"""Settings resolved once against model and device, each with its reason; memory and speed-limit estimates."""

from octavo.planning.capacity import fit_cache, resize_cache
from octavo.planning.plan import adapt_settings, make_plan

__all__ = ["adapt_settings", "fit_cache", "make_plan", "resize_cache"]
