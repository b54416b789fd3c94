"""Resolves all settings once for the model and the device, each with a reason; estimates memory and the speed limit.

:func:`make_plan` turns an :class:`EngineConfig` into a :class:`Plan`; start in ``plan.py``.
"""

from octavo.planning.capacity import fit_cache, resize_cache
from octavo.planning.plan import adapt_settings, make_plan
