"""Converts engine outputs to request outputs."""

from octavo.outputs.processor import OutputProcessor, ProcessedOutputs

__all__ = ["OutputProcessor", "ProcessedOutputs"]
