"""Decides which requests run next, under which policy and token budget. No tensors; start in ``scheduler.py``."""

from octavo.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
