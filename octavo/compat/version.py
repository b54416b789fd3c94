"""The version that code asks for before it decides which of vLLM's paths to import."""

from octavo.compat.table import VERSION

__version__ = VERSION
__version_tuple__ = tuple(int(part) for part in VERSION.split("."))
