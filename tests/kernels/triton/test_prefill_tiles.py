"""Which heads' tiles prefill programs take together."""

import pytest

from octavo.kernels.triton.prefill_tiles import choose_queued_heads


@pytest.mark.parametrize("num_kv_heads", [1, 3, 8, 32])
@pytest.mark.parametrize("group", [1, 4, 7])
@pytest.mark.parametrize(("num_rows", "length"), [(1, 200), (2, 4096), (8, 1024), (1, 32_768), (300, 3)])
def test_heads_of_a_queue(num_kv_heads: int, group: int, num_rows: int, length: int) -> None:
    num_tiles, num_sms = num_rows * length // 128 + num_rows, 132
    heads = choose_queued_heads(num_tiles, num_rows, num_kv_heads, group, num_sms, is_fresh=True)
    assert num_kv_heads % heads == 0
    assert heads == num_kv_heads or num_tiles * group * heads >= 2 * num_sms * num_rows
    fewer = [other for other in range(1, heads) if num_kv_heads % other == 0]
    assert all(num_tiles * group * other < 2 * num_sms * num_rows for other in fewer)
    assert choose_queued_heads(num_tiles, num_rows, num_kv_heads, group, num_sms, is_fresh=False) == 1
