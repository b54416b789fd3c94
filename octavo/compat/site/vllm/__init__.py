"""Stands in for vLLM where that is not installed. See :mod:`octavo.compat.mirror`."""

import sys

from octavo.compat.mirror import become_vllm

become_vllm(sys.modules[__name__])
