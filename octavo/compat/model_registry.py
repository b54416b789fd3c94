"""vLLM's model registry, read-only."""

from collections.abc import Set as AbstractSet

from octavo.errors import UnsupportedModelError
from octavo.models.registry import supported_architectures


class Registry:
    """The architectures that Octavo can load."""

    def get_supported_archs(self) -> AbstractSet[str]:
        """Their names."""
        return frozenset(supported_architectures())

    def register_model(self, model_arch: str, model_cls: object) -> None:
        """Refused: a model written for vLLM's layers cannot run on Octavo's.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError(
            f"The architecture {model_arch!r} cannot be registered: Octavo runs only the models that it brings."
        )


ModelRegistry = Registry()
