"""Which keys a query sees, as attention's windows define it."""


def first_key(position: int, window: int | None) -> int:
    """The first key that a query at a position sees.

    Args:
        window: of so many tokens; negative for chunks; None for all.
    """
    if window is None:
        return 0
    return position // -window * -window if window < 0 else max(0, position - window + 1)
