"""Weights from files into a model."""

from octavo.models.loading.load import LoadReport, load_weights

__all__ = ["LoadReport", "load_weights"]
