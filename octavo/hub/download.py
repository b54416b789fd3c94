"""Models from the Hugging Face hub, through its own library and cache."""

from pathlib import Path

from octavo.errors import ModelNotFoundError

# Files of a model; never *.bin or *.pt, whose loading can run code.
_ALLOW_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
# Subfolders contain the model in other formats, except numbered ones, which contain sentence-transformers' modules;
# consolidated.safetensors contains the weights under other names.
_IGNORE_PATTERNS = ["[!0-9]*/*", "*/*/*", "consolidated*"]


def download(name: str, revision: str | None, token: str | None, cache_dir: str | None) -> Path:
    """The folder of a repository's snapshot, from the cache where it is complete.

    Args:
        cache_dir: where downloads are kept; None is the library's default.

    Raises:
        ModelNotFoundError: there is no such repository, it may not be read, or the hub cannot be reached.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=_ALLOW_PATTERNS,
            ignore_patterns=_IGNORE_PATTERNS,
        )
    except HFValidationError:
        raise ModelNotFoundError(
            f"{name!r} is neither a file or folder here nor a name that the hub could have (org/name)."
        ) from None
    except GatedRepoError:
        raise ModelNotFoundError(
            f"The model {name!r} is gated: accept its terms on the hub and give a token (--hf-token or HF_TOKEN)."
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFoundError(f"The model {name!r} has no revision {revision!r}.") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"There is no folder {name!r} here, and no such model on the hub (or it is private and needs a token)."
        ) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise ModelNotFoundError(
            f"There is no folder {name!r} here, no such model in the cache, and the hub {_why_unreachable()}."
        ) from None
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise ModelNotFoundError(f"The model {name!r} could not be fetched: {error}") from None
    return Path(folder)


def _why_unreachable() -> str:
    from huggingface_hub import constants

    return "is not asked in offline mode (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "cannot be reached"
