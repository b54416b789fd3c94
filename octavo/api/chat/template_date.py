"""The fixed date for chat templates."""

from datetime import date
from typing import Any

from octavo.config import ServerSettings
from octavo.errors import ConfigError


def pinned_date(settings: ServerSettings) -> dict[str, Any]:
    """Values for chat templates that pin the date which ``strftime_now`` writes, if the operator sets one.

    Raises:
        ConfigError: it is no date.
    """
    if settings.chat_template_date is None:
        return {}
    try:
        day = date.fromisoformat(settings.chat_template_date)
    except ValueError:
        raise ConfigError(
            f"chat_template_date is a date such as 2025-06-28, got {settings.chat_template_date!r}."
        ) from None

    def strftime_now(pattern: str) -> str:
        return day.strftime(pattern)

    return {"strftime_now": strftime_now}
