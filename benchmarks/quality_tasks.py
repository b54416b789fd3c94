"""Tasks for small base models whose answers are known, made by a seed.

An answer counts as found if each of its tokens is the most likely one behind the prompt and the tokens before it: then
greedy generation would write it. So nothing is generated, and nothing that a model writes is executed.
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

_WORDS = (
    "amber anchor apple arrow basket bell bridge button candle castle cherry cloud copper corner cotton dragon engine "
    "feather forest garden glass hammer harbor honey island jacket kitchen ladder lemon letter market mirror mountain "
    "needle ocean orange paper pencil pepper planet pocket rabbit ribbon river rocket saddle shadow silver spider "
    "spring stone summer table thunder ticket tiger valley velvet violin wagon walnut window winter yellow"
)
_CAPITALS = (
    "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Japan Tokyo, China Beijing, Russia Moscow, Egypt Cairo, "
    "Greece Athens, Poland Warsaw, Austria Vienna, Portugal Lisbon, Sweden Stockholm, Norway Oslo, Ireland Dublin, "
    "Hungary Budapest, Turkey Ankara, Canada Ottawa, Cuba Havana, Kenya Nairobi, Peru Lima, Iran Tehran, Iraq Baghdad"
)
_OPPOSITES = (
    "hot cold, big small, up down, left right, open closed, early late, fast slow, happy sad, light dark, high low, "
    "rich poor, wet dry, full empty, hard soft, young old, good bad, near far, true false, strong weak, long short"
)


class Task(NamedTuple):
    """A prompt and what comes next, which begins with a space or a line's end."""

    name: str
    prompt: str
    answer: str


def make_tasks(count: int, filler: str) -> list[Task]:
    """Some tasks of each kind, always the same ones.

    Args:
        count: at most so many of a kind.
        filler: text in which a fact is hidden.
    """
    return [task for make in MAKERS for task in _first(make(random.Random(0), filler), count)]


def _first(tasks: Iterator[Task], count: int) -> Iterator[Task]:
    for _, task in zip(range(count), tasks, strict=False):
        yield task


def _copying(rng: random.Random, filler: str) -> Iterator[Task]:
    while True:
        lists = [" ".join(rng.sample(_WORDS.split(), 6)) for _ in range(3)]
        shown = "".join(f"List: {words}\nAgain: {words}\n" for words in lists[:2])
        yield Task("copying", f"{shown}List: {lists[2]}\nAgain:", f" {lists[2]}")


def _lookup(rng: random.Random, filler: str) -> Iterator[Task]:
    while True:
        values = dict(zip(rng.sample(_WORDS.split(), 8), rng.sample(range(100, 1000), 8), strict=True))
        key = rng.choice(list(values))
        table = "".join(f"The number of {word} is {value}.\n" for word, value in values.items())
        yield Task("lookup", f"{table}Once more: the number of {key} is", f" {values[key]}.")


def _needle(rng: random.Random, filler: str) -> Iterator[Task]:
    sentences = filler.replace("\n", " ").split(". ")
    while True:
        key, value = rng.choice(_WORDS.split()), rng.randrange(1000, 10000)
        start, place = rng.randrange(len(sentences) * 3 // 4), rng.randrange(1, len(sentences) // 4)
        kept = sentences[start : start + len(sentences) // 4]
        kept.insert(place, f"The secret number of the {key} is {value}")
        yield Task("needle", ". ".join(kept) + f". The secret number of the {key} is", f" {value}")


def _sums(rng: random.Random, filler: str) -> Iterator[Task]:
    while True:
        pairs = [(rng.randrange(2, 50), rng.randrange(2, 50)) for _ in range(5)]
        *shown, last = [(f"{a} + {b} =", f" {a + b}\n") for a, b in pairs]
        yield Task("sums", "".join(question + answer for question, answer in shown) + last[0], last[1])


def _series(rng: random.Random, filler: str) -> Iterator[Task]:
    while True:
        start, step = rng.randrange(1, 60), rng.randrange(1, 12)
        numbers = [start + step * place for place in range(7)]
        yield Task("series", ", ".join(map(str, numbers[:-1])) + ",", f" {numbers[-1]}")


def _brackets(rng: random.Random, filler: str) -> Iterator[Task]:
    pairs = {"(": ")", "[": "]", "{": "}"}
    while True:
        lines = []
        for _ in range(4):
            opened = [rng.choice("([{") for _ in range(rng.randrange(3, 6))]
            lines.append((" ".join(opened), " " + " ".join(pairs[one] for one in reversed(opened)) + "\n"))
        shown = "".join(question + answer for question, answer in lines[:-1])
        yield Task("brackets", shown + lines[-1][0], lines[-1][1])


def _facts(rng: random.Random, filler: str) -> Iterator[Task]:
    capitals = [pair.split() for pair in _CAPITALS.split(", ")]
    opposites = [pair.split() for pair in _OPPOSITES.split(", ")]
    rng.shuffle(capitals)
    rng.shuffle(opposites)
    for (country, capital), (word, other) in zip(capitals, opposites, strict=False):
        yield Task("facts", f"The capital of Spain is Madrid. The capital of {country} is", f" {capital}")
        yield Task("facts", f"The opposite of black is white. The opposite of {word} is", f" {other}")


MAKERS: tuple[Callable[[random.Random, str], Iterator[Task]], ...] = (
    _copying,
    _lookup,
    _needle,
    _sums,
    _series,
    _brackets,
    _facts,
)
