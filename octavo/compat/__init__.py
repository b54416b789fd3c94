"""vLLM's public module paths, for code that was written for them.

``import octavo.compat.vllm`` makes ``import vllm`` find Octavo where vLLM is not installed, and so does
``python -m octavo.compat script.py`` for unmodified scripts. :mod:`octavo.compat.table` says which
names there are; :mod:`octavo.compat.mirror` makes the modules. Besides re-exports, this package holds what has a
meaning only in such code, such as :class:`~octavo.compat.engine_args.EngineArgs`.
"""
