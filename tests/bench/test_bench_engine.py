from itertools import islice
from pathlib import Path

import pytest

from octavo.bench.engine import Engine, EngineSamples, run_turn
from octavo.bench.engine_figures import figures_of
from octavo.bench.engine_turn import CASES, GenerateCall, draw_calls
from octavo.bench.limits import Ceilings, ModelLimits
from octavo.bench.shapes import SHAPES
from octavo.errors import EngineDeadError
from octavo.hub.config_file import parse_config

TOKEN_IDS = (10, 100)
FAKE_ENGINE = """\
__version__ = "0.0.fake"
import logging

class SamplingParams:
    def __init__(self, *, temperature, max_tokens, ignore_eos, detokenize):
        assert temperature == 0.0 and ignore_eos and not detokenize
        self.max_tokens = max_tokens

class Answer:
    def __init__(self, length):
        self.token_ids = [0] * length

class Output:
    def __init__(self, length):
        self.outputs = [Answer(length)]

class LLM:
    def __init__(self, model, shortens):
        self.shortens = shortens
        logging.getLogger(__name__).info("Start: weights 1.0 s")

    def generate(self, prompts, params, use_tqdm):
        assert all(prompt["prompt_token_ids"] for prompt in prompts)
        return [Output(param.max_tokens - self.shortens) for param in params]
"""


def test_calls_are_drawn_alike_every_time() -> None:
    first, second = (list(islice(draw_calls(0.01, TOKEN_IDS), 15)) for _ in range(2))
    assert first == second
    drawn = {token for call in first for prompt in call.prompts for token in prompt}
    assert drawn == set(range(*TOKEN_IDS))


def test_the_full_measure() -> None:
    calls: dict[str, list[GenerateCall]] = {}
    for call in draw_calls(1.0, TOKEN_IDS):
        calls.setdefault(call.name, []).append(call)
        if call.case == "chat":
            break
    shapes = {name: (len(same), len(same[0].prompts), same[0].output_lens[0]) for name, same in calls.items()}
    assert shapes["latency_1"] == (5, 1, 1)
    assert shapes["latency_257"] == (3, 1, 257)
    assert shapes["decode_256_129"] == (1, 256, 129)
    assert shapes["prefill_4096"] == (2, 64, 1)
    assert shapes["mixed"] == (1, 1000, 128)
    (chat,) = calls["chat"]
    lengths = [len(prompt) for prompt in chat.prompts]
    assert len(lengths) == 1000 and min(lengths) >= 8 and max(lengths) == 2048 and max(chat.output_lens) <= 1024


def test_a_turn_of_another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_engine.py").write_text(FAKE_ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    turn = run_turn(Engine("fake_engine", {"model": "m", "shortens": 0}), ["latency", "chat"], 0.01, TOKEN_IDS)
    assert turn.version == "0.0.fake"
    assert turn.start_notes == ["weights 1.0 s"]
    assert {name: len(samples.seconds) for name, samples in turn.samples.items()} == {
        "latency_1": 5,
        "latency_257": 3,
        "chat": 1,
    }
    assert list(turn.phases) == ["python", "import", "engine", "first call"]
    assert all(seconds >= 0 for seconds in turn.phases.values())
    with pytest.raises(EngineDeadError, match="fake_engine ended with status 1"):
        run_turn(Engine("fake_engine", {"model": "m", "shortens": 1}), ["latency"], 0.01, TOKEN_IDS)


def test_figures_and_their_formulas() -> None:
    limits = ModelLimits(parse_config(SHAPES["tiny"]), 4, Ceilings(1e12, 1e15))
    samples = {
        "latency_1": EngineSamples([128], [1], [0.3, 0.1, 0.2, 9.0, 0.05]),
        "latency_257": EngineSamples([128], [257], [2.76, 2.76, 9.0]),
        "decode_8_1": EngineSamples([256] * 8, [1] * 8, [1.0]),
        "decode_8_129": EngineSamples([256] * 8, [129] * 8, [3.0]),
        "prefill_4096": EngineSamples([4096] * 64, [1] * 64, [4.0, 2.0]),
        "mixed": EngineSamples([1024] * 10, [128] * 10, [2.0]),
        "chat": EngineSamples([10, 20], [30, 70], [4.0]),
        "first_token": EngineSamples([128], [1], [0.1, 0.2, 0.3]),
    }
    figures = {figure.name: figure for figure in figures_of(5.0, samples, limits)}
    values = {name: figure.value for name, figure in figures.items()}
    assert values == pytest.approx(
        {
            "startup_s": 5.0,
            "ttft_128_ms": 200.0,
            "tpot_bs1_ms": 10.0,
            "decode_bs8_tok_s": 512.0,
            "prefill_4096_tok_s": 131072.0,
            "mixed_1024_128_req_s": 5.0,
            "mixed_1024_128_total_tok_s": 5760.0,
            "chat_like_req_s": 0.5,
            "chat_like_out_tok_s": 25.0,
            "first_token_p50_ms": 200.0,
            "first_token_p90_ms": 280.0,
            "first_token_p99_ms": 298.0,
        }
    )
    for figure in figures.values():
        if figure.limit is not None:
            assert figure.limit < figure.value if figure.is_time else figure.limit > figure.value


def test_a_case_alone_gives_its_figures_alone() -> None:
    limits = ModelLimits(parse_config(SHAPES["tiny"]), 4, Ceilings(1e12, 1e15))
    figures = figures_of(1.0, {"chat": EngineSamples([10], [30], [4.0])}, limits)
    assert [figure.name for figure in figures] == ["startup_s", "chat_like_req_s", "chat_like_out_tok_s"]
    assert set(CASES) >= {"latency", "decode", "prefill", "mixed", "chat"}
