"""A folder for the end of ``sys.path``: what it holds is importable as ``vllm``. See :mod:`octavo.compat.mirror`."""
