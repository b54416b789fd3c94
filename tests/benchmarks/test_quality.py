"""The benchmark of quality: how far schemes and other libraries round from a weight, what is compared, the tasks."""

import gc
import importlib.util
import math
import sys
import weakref
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by their own names

import quality
import quality_tasks
from quality_references import (
    REFERENCES,
    TransformersReader,
    check_installed,
    float8_by_tensor,
    float8_unscaled,
)
from quality_schemes import SCHEMES, SERVED, Scheme

LARGEST = {
    "fp8": 0.0255,
    "fp8 weights": 0.0255,
    "w8a8": 0.0206,
    "int8": 0.0096,
    "int4": 0.1094,
    "mxfp4": 0.1208,
    "nvfp4": 0.0952,
}

DIVERGENCES = {
    "fp8": 0.0225,
    "w8a8": 0.0268,
    "int8": 0.0015,
    "int4": 0.2536,
    "mxfp4": 0.4327,
    "nvfp4": 0.2117,
    "fp8 cache": 0.0043,
    "int8 cache": 0.0007,
}
"""Nats a token. Another processor adds in another order, which has moved FP8's by 9 %."""


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.make is not None])
def test_errors_of_gaussian_weights_with_outliers(name: str) -> None:
    assert SCHEMES[name].bound is not None
    assert 0.99 * LARGEST[name] < quality.weight_error(SCHEMES[name]) < LARGEST[name]


@pytest.mark.parametrize("name", [name for name, scheme in REFERENCES.items() if scheme.make is not None])
def test_no_reference_is_closer(name: str) -> None:
    """Ours is at most as far off, up to the rounding of scales; in blocks, FP8 has fewer of these."""
    reference = REFERENCES[name]
    if reference.needs is not None:
        pytest.importorskip(reference.needs, reason="needs requirements/references.txt; run on an AMD EPYC")
    own = next(ours for ours in ("fp8", "w8a8", "int8", "int4", "mxfp4", "nvfp4") if ours in name.split())
    error = quality.weight_error(reference)
    assert error < 1.6 * LARGEST[own]
    assert quality.weight_error(SCHEMES[own]) < 1.001 * error


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed([*SCHEMES.values(), REFERENCES["gguf mxfp4"]])
    with pytest.raises(SystemExit, match=r"hqq, torchao\..*pip install .*requirements/references\.txt"):
        check_installed([SCHEMES["int4"], REFERENCES["torchao int4"], REFERENCES["hqq int4"]])


def test_references_of_caches() -> None:
    """Numbers by hand: steps of 8 bits, what is too large, and the scale that the largest one gets."""
    x = torch.tensor([[1.0, 1.07, -500.0], [2.0**-10, 0.0, 224.0]])
    assert float8_unscaled(x).tolist() == [[1.0, 1.125, -448.0], [0.0, 0.0, 224.0]]
    assert float8_by_tensor(2 * x.clamp(min=-448)).tolist() == [[2.0, 2.25, -896.0], [0.0, 0.0, 448.0]]


def test_distributions_are_compared_in_full() -> None:
    reference = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()
    found = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    figures = quality.compare(reference, found, [0, 1, 1])
    assert figures["kl"] == pytest.approx(0.25 * math.log(2) / 2)
    assert figures["perplexity"] == pytest.approx(math.sqrt(8))
    assert figures["agreement"] == 0.5


@pytest.mark.long
def test_layers_are_rounded() -> None:
    """On the demo model: what is rounded differs, what is not does not, and an answer is found or not."""
    plain = quality.Reader("bundled:smollm2", Scheme())
    token_ids = plain.encode("The capital of France is Paris. The capital of Italy is Rome.")
    reference = plain.logprobs(token_ids)
    torch.testing.assert_close(reference.exp().sum(-1), torch.ones(len(token_ids) - 1))
    assert quality.answer(plain, quality_tasks.Task("facts", "The capital of France is", " Paris"))[0]
    assert not quality.answer(plain, quality_tasks.Task("facts", "The capital of France is", " banana"))[0]
    plain.close()
    same = quality.Reader("bundled:smollm2", Scheme(lambda weight: lambda x: x @ weight.T))
    torch.testing.assert_close(same.logprobs(token_ids), reference, rtol=1e-3, atol=1e-3)
    same.close()
    rounded = quality.Reader("bundled:smollm2", SCHEMES["mxfp4"])
    assert 0.05 < quality.compare(reference, rounded.logprobs(token_ids), token_ids)["kl"] < 2
    rounded.close()


@pytest.mark.long
def test_transformers_reads_the_same() -> None:
    """Keys and values that are not rounded change nothing, rounded ones do."""
    text = "The capital of France is Paris. The capital of Italy is Rome."
    plain = quality.Reader("bundled:smollm2", Scheme())
    token_ids = plain.encode(text)
    reference = plain.logprobs(token_ids)
    plain.close()
    theirs = TransformersReader("bundled:smollm2", lambda x: x)
    assert theirs.encode(text) == token_ids
    torch.testing.assert_close(theirs.logprobs(token_ids), reference, rtol=1e-3, atol=1e-3)
    theirs.close()
    rounded = TransformersReader("bundled:smollm2", float8_unscaled)
    assert 1e-3 < quality.compare(reference, rounded.logprobs(token_ids), token_ids)["kl"] < 0.1
    rounded.close()


def test_closed_models_are_freed() -> None:
    """So that a run over many schemes needs the memory of one."""
    models: list[weakref.ref[torch.nn.Module]] = []
    reader = quality.Reader("bundled:smollm2", Scheme(lambda weight: lambda x: x @ weight.T))
    reader._llm.apply_model(lambda model: models.append(weakref.ref(model)))
    reader.logprobs([1, 2, 3])
    assert models[0]() is not None
    reader.close()
    del reader
    gc.collect()
    assert models[0]() is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), DIVERGENCES.items())
def test_divergence_on_the_demo_model(name: str, expected: float) -> None:
    """As ``docs/quantization.md`` quotes it."""
    reader = quality.Reader("bundled:smollm2", Scheme())
    token_ids = reader.encode(quality.PASSAGE)
    reference = reader.logprobs(token_ids)
    reader.close()
    reader = quality.Reader("bundled:smollm2", SCHEMES[name])
    divergence = quality.compare(reference, reader.logprobs(token_ids), token_ids)["kl"]
    reader.close()
    assert divergence == pytest.approx(expected, rel=0.12)


def test_tasks() -> None:
    """The same ones each time, as many of each kind as are asked for, with answers that are true."""
    filler = ". ".join(f"Sentence {number} of the filler" for number in range(40))
    tasks = quality_tasks.make_tasks(5, filler)
    assert tasks == quality_tasks.make_tasks(5, filler)
    kinds = [task.name for task in tasks]
    assert len(kinds) == 5 * len(quality_tasks.MAKERS)
    assert set(map(kinds.count, kinds)) == {5}
    for name, prompt, answer in tasks:
        if name == "sums":
            a, _, b, _ = prompt.rsplit("\n", 1)[1].split()
            assert int(a) + int(b) == int(answer)
        elif name == "series":
            *_, last_but_one, last = map(int, prompt.rstrip(",").split(", "))
            assert int(answer) == 2 * last - last_but_one
        elif name == "needle":
            key = prompt.rsplit(" ", 2)[1]
            assert f"The secret number of the {key} is{answer}." in prompt
        elif name == "lookup":
            key = prompt.rsplit(" ", 2)[1]
            assert f"The number of {key} is{answer}" in prompt


def test_served_engines_are_in_bfloat16() -> None:
    assert all(scheme.settings["dtype"] == "bfloat16" and scheme.make is None for scheme in SERVED.values())
