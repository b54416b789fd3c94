"""Token ids as arrays."""

import numpy as np
import pytest

from octavo.records import NO_TOKEN_IDS, as_token_ids, token_ids_from_bytes


def test_lists_become_arrays_and_back() -> None:
    token_ids = as_token_ids([0, 5, 2**31 - 1])
    assert token_ids.dtype == np.int32
    assert token_ids.tolist() == [0, 5, 2**31 - 1]
    assert token_ids_from_bytes(token_ids.tobytes()).tolist() == token_ids.tolist()


def test_none_at_all() -> None:
    for token_ids in (as_token_ids([]), token_ids_from_bytes(b""), NO_TOKEN_IDS):
        assert token_ids.tolist() == []
        assert token_ids.dtype == np.int32


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        as_token_ids([2**31])


@pytest.mark.parametrize("data", [b"1", b"12345", "1234", [1], None])
def test_other_data_is_an_error(data: object) -> None:
    with pytest.raises(ValueError, match="32-bit"):
        token_ids_from_bytes(data)
