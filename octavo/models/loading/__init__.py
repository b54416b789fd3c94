"""Weights from files into a model."""

from octavo.models.loading.load import LoadReport, check_format, check_weights, load_weights

__all__ = ["LoadReport", "check_format", "check_weights", "load_weights"]
