"""Loads weights from files into a model; start in ``load.py``."""

from octavo.models.loading.load import LoadReport, check_format, check_weights, load_weights

__all__ = ["LoadReport", "check_format", "check_weights", "load_weights"]
