"""Weights from files into a model."""

from octavo.models.loading.load import LoadReport, check_weights, load_weights

__all__ = ["LoadReport", "check_weights", "load_weights"]
