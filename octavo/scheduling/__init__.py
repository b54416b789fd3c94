"""Which requests run next, under which policy and budget. No tensors."""

from octavo.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
