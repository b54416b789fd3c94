"""From the engine's tokens to what users get."""

from octavo.outputs.processor import OutputProcessor, ProcessedOutputs

__all__ = ["OutputProcessor", "ProcessedOutputs"]
