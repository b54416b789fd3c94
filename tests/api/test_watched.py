"""Merging several generators loses nothing and leaves nothing running."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.api.watched import last_items, merge


class Sources:
    """Generators of numbers that are closed or not."""

    def __init__(self) -> None:
        self.num_open = 0

    async def count(self, stop: int | None, error: Exception | None = None) -> AsyncGenerator[int, None]:
        self.num_open += 1
        try:
            number = 0
            while stop is None or number < stop:
                yield number
                await asyncio.sleep(0)
                number += 1
            if error is not None:
                raise error
        finally:
            self.num_open -= 1


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_every_item_comes_in_its_order(lengths: list[int]) -> None:
    async def run() -> list[list[int]]:
        sources = Sources()
        found: list[list[int]] = [[] for _ in lengths]
        async for index, item in merge([sources.count(length) for length in lengths]):
            found[index].append(item)
        assert sources.num_open == 0
        return found

    assert asyncio.run(run()) == [list(range(length)) for length in lengths]


@pytest.mark.parametrize("num_others", [0, 3])
def test_an_error_closes_the_others(num_others: int) -> None:
    async def run() -> None:
        sources = Sources()
        endless = [sources.count(None) for _ in range(num_others)]
        with pytest.raises(ValueError, match="broken"):
            await last_items([*endless, sources.count(3, ValueError("broken"))])
        assert sources.num_open == 0

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("num_sources", [1, 3])
def test_closing_closes_all(num_sources: int) -> None:
    async def run() -> None:
        sources = Sources()
        merged = merge([sources.count(None) for _ in range(num_sources)])
        for _ in range(5):
            await anext(merged)
        assert sources.num_open == num_sources
        await merged.aclose()
        assert sources.num_open == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_last_items() -> None:
    async def run() -> list[int]:
        sources = Sources()
        return await last_items([sources.count(3), sources.count(1), sources.count(7)])

    assert asyncio.run(run()) == [2, 0, 6]
