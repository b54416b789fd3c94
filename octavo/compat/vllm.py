"""Import this, and ``import vllm`` finds Octavo from then on; never over a vLLM that is installed."""

from octavo.compat.mirror import install

install()
