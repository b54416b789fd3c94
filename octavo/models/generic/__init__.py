"""Any causal language model of the transformers library, with Octavo's attention, cache, GEMMs and norms.

``model.py`` puts such a model together: ``library.py`` makes the library's modules without memory, ``trace.py`` runs
them once on the meta device to see what each attention layer asks for, ``replace.py`` puts Octavo's layers in the place
of theirs, and ``names.py`` knows what checkpoints call the weights. What cannot be served is rejected by the trace,
before any weight is read.
"""
