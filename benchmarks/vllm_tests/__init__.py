"""vLLM's own entry-point tests, run against Octavo.

``python -m benchmarks.vllm_tests --group openai`` downloads vLLM's source distribution into a cache
(:mod:`.source`), runs one of its test files after the other (:mod:`.__main__`) with a pytest plugin
(:mod:`.plugin`) that starts ``octavo serve`` where a test starts ``vllm serve`` (:mod:`.server`), and reports what
passed, what failed and what was deselected, each with its reason (:mod:`.report`). What is deselected is decided in
:mod:`.rules`; names of vLLM's package that Octavo does not mirror are replaced by :mod:`.standins`.
"""
