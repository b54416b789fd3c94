"""What an owner does to an engine, and what that does to its requests."""

import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_requests import engine_request
from safetensors.torch import load_file, save_file
from tiny_llama import SETTINGS, write_model

from octavo.config import EngineConfig
from octavo.engine.control import Control
from octavo.engine.core import WEIGHTS_ARE_LOST, EngineCore
from octavo.engine.state import AS_CONFIGURED, EngineState, UpdatedWeights
from octavo.errors import InvalidRequestError
from octavo.records import EngineOutput, SamplingParams, StepOutputs, StructuredOutputsParams
from octavo.sampling.grammar.base import CompiledGrammar

PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def updates(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights to update to: other ones, ones that do not fit, and a pickle."""
    root = tmp_path_factory.mktemp("updates")
    weights = load_file(folder / "model.safetensors")
    for name in ("new", "misfit", "pickle"):
        (root / name).mkdir()
    torch.manual_seed(5)
    changed = {key: tensor + 0.1 * torch.randn_like(tensor) for key, tensor in weights.items()}
    save_file(changed, root / "new" / "model.safetensors")
    save_file({key: tensor[:1] for key, tensor in weights.items()}, root / "misfit" / "model.safetensors")
    torch.save(weights, root / "pickle" / "pytorch_model.bin")
    return root


class Engine:
    """An engine and its control, with what came out of both."""

    def __init__(self, folder: Path, *, state: EngineState = AS_CONFIGURED, **settings: Any) -> None:
        config = EngineConfig.from_kwargs(model=str(folder), **(SETTINGS | settings))
        self.core = EngineCore(config, state=state)
        self.control = Control(self.core, config, self._take, lambda: None, state)
        self.token_ids: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.replies: dict[str, tuple[Any, str | None]] = {}

    def add(self, request_id: str, num_tokens: int = 24) -> None:
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self.core.add_request(engine_request(request_id, PROMPT, params))
        self.token_ids[request_id] = []

    def add_bound(self, request_id: str) -> None:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
        self.core.add_request(engine_request(request_id, PROMPT, params))
        self.token_ids[request_id] = []

    def call_now(self, name: str, **arguments: Any) -> Any:
        """The reply, which comes at once."""
        self.begin(name, **arguments)
        return self.replies.pop(name)[0]

    def call(self, name: str, **arguments: Any) -> Any:
        """The reply, which must have come by the time that the engine has no work left."""
        self.begin(name, **arguments)
        self.run()
        value, error = self.replies.pop(name)
        if error is not None:
            raise AssertionError(error)
        return value

    def refusal(self, name: str, **arguments: Any) -> str:
        self.begin(name, **arguments)
        error = self.replies.pop(name)[1]
        assert error is not None and error.endswith(".")
        return error

    def begin(self, name: str, **arguments: Any) -> None:
        self.control.call(name, arguments, lambda value, error: self.replies.update({name: (value, error)}))

    def step(self) -> None:
        self._take(self.core.step())
        self.control.advance()

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def run_until(self, request_id: str, num_tokens: int) -> None:
        while len(self.token_ids[request_id]) < num_tokens:
            self.step()

    def text(self, request_id: str) -> list[int]:
        """All tokens of a request of its own."""
        self.add(request_id)
        self.run()
        assert self.reasons[request_id] == "length"
        return self.token_ids[request_id]

    def _take(self, outputs: StepOutputs) -> None:
        output: EngineOutput
        for output in outputs:
            self.token_ids[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.reasons[output.request_id] = output.finish_reason


@pytest.fixture(scope="module")
def _shared(folder: Path, updates: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    profiles = tmp_path_factory.mktemp("profiles")
    return Engine(folder, weight_update_dir=str(updates), profiler_config={"torch_profiler_dir": str(profiles)})


@pytest.fixture
def engine(_shared: Engine) -> Engine:
    """Awake, idle, with its own weights."""
    _wake(_shared)
    _shared.token_ids.clear()
    _shared.reasons.clear()
    return _shared


def _wake(engine: Engine) -> None:
    """Undo what the test before has left, whichever that was."""
    if engine.core.sleep_level or engine.core.is_paused:
        engine.call("wake_up")
    engine.run()


@pytest.fixture
def ahead(folder: Path) -> Iterator[Engine]:
    """One that prepares a step before the last one's tokens are known."""
    engine = Engine(folder, async_scheduling=True)
    yield engine
    engine.core.shutdown()


@pytest.fixture(scope="module")
def expected(_shared: Engine) -> list[int]:
    _wake(_shared)
    return _shared.text("undisturbed")


@pytest.mark.parametrize("clear_cache", [True, False])
def test_kept_requests_go_on_where_they_were(engine: Engine, expected: list[int], clear_cache: bool) -> None:
    engine.add("a")
    engine.run_until("a", 5)
    assert engine.call("pause", mode="keep", clear_cache=clear_cache)
    assert not engine.core.has_work and engine.core.stats.is_paused
    num_tokens = len(engine.token_ids["a"])
    assert num_tokens < 24
    engine.add("b")
    engine.step()
    assert len(engine.token_ids["a"]) == num_tokens and not engine.token_ids["b"]
    assert engine.core.stats.num_running == (0 if clear_cache else 1)
    engine.call("resume")
    engine.run()
    assert engine.token_ids == {"a": expected, "b": expected}


def test_aborted_requests_end_with_what_they_have(engine: Engine, expected: list[int]) -> None:
    engine.add("a")
    engine.run_until("a", 5)
    engine.call("pause", mode="abort")
    assert engine.reasons == {"a": "abort"}
    assert engine.core.stats.cache_usage == 0
    engine.add("late")
    engine.step()
    assert not engine.token_ids["late"]
    engine.call("resume")
    engine.run()
    assert engine.token_ids["late"] == expected


def test_a_pause_may_wait_for_requests_that_are_here(engine: Engine, expected: list[int]) -> None:
    engine.add("a")
    engine.run_until("a", 5)
    engine.begin("pause", mode="wait")
    engine.add("late")
    engine.run()
    assert engine.replies.pop("pause") == (True, None)
    assert engine.token_ids == {"a": expected, "late": []}
    assert engine.core.stats.is_paused and engine.core.stats.num_waiting == 1
    engine.call("resume")
    engine.run()
    assert engine.token_ids["late"] == expected


def test_a_pause_that_waits_can_be_called_off(engine: Engine, expected: list[int]) -> None:
    engine.add("a")
    engine.run_until("a", 5)
    engine.begin("pause", mode="wait")
    engine.call("resume")
    assert "resume before" in str(engine.replies.pop("pause")[1])
    assert engine.text("b") == expected


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("tags", [None, [["weights"], ["kv_cache"], ["scheduling"]]])
def test_an_engine_that_slept_writes_the_same(
    engine: Engine, expected: list[int], level: int, tags: list[list[str]] | None
) -> None:
    engine.add("a")
    engine.run_until("a", 5)
    engine.call("sleep", level=level, mode="keep")
    assert engine.core.stats.sleep_level == level
    assert engine.core.executor.worker._runner is None, "the cache is given back"  # type: ignore[attr-defined]
    engine.add("late")
    engine.step()
    assert "wake it up" in engine.refusal("resume")
    for part in tags or [None]:
        assert not engine.token_ids["late"]
        engine.call("wake_up", tags=part)
    engine.run()
    assert engine.core.stats.sleep_level == 0 and not engine.core.stats.is_paused
    assert engine.token_ids == {"a": expected, "late": expected}


def test_level_zero_only_pauses(engine: Engine, expected: list[int]) -> None:
    engine.call("sleep", level=0)
    assert engine.core.stats.sleep_level == 0 and engine.core.stats.is_paused
    engine.call("wake_up")
    assert engine.text("a") == expected


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("pause", {"mode": "later"}, "abort, wait, keep"),
        ("sleep", {"level": 3}, "0, 1 or 2"),
        ("wake_up", {"tags": ["brain"]}, "brain"),
        ("start_weight_update", {}, "Pause the engine"),
        ("update_weights", {}, "Start the weight update"),
        ("finish_weight_update", {}, "No weight update"),
        ("stop_profile", {}, "No profile"),
        ("no_such_thing", {}, "no function"),
    ],
)
def test_refusals(engine: Engine, name: str, arguments: dict[str, Any], words: str) -> None:
    assert words in engine.refusal(name, **arguments)


def test_parts_of_waking_up_have_an_order(engine: Engine) -> None:
    engine.call("sleep", level=1)
    assert "kv_cache" in engine.refusal("wake_up", tags=["scheduling"])


def test_cached_prefixes_are_forgotten(engine: Engine, expected: list[int]) -> None:
    engine.text("a")
    hits = engine.core.stats.prefix_hits
    engine.text("b")
    assert engine.core.stats.prefix_hits > hits
    assert engine.call("reset_prefix_cache") is True
    hits = engine.core.stats.prefix_hits
    engine.add("c")
    engine.run_until("c", 5)
    assert engine.core.stats.prefix_hits == hits
    engine.begin("reset_prefix_cache")
    assert engine.replies.pop("reset_prefix_cache") == (False, None)
    assert engine.call("reset_prefix_cache", reset_running_requests=True) is True
    engine.run()
    assert engine.token_ids["c"] == expected


def test_new_weights_and_the_old_ones_again(engine: Engine, expected: list[int]) -> None:
    before = engine.call("weight_checksums")
    engine.call("pause", mode="keep")
    engine.call("start_weight_update")
    engine.call("update_weights", path="new")
    engine.call("finish_weight_update", weight_version="v2")
    engine.call("resume")
    assert engine.call("weight_version") == "v2"
    changed = engine.call("weight_checksums")
    assert changed.keys() == before.keys() and changed != before
    assert engine.text("new") != expected
    # What sleeps deeply wakes up with the weights it had.
    engine.call("sleep", level=2)
    engine.call("wake_up")
    assert engine.call("weight_checksums") == changed
    engine.call("pause")
    engine.call("start_weight_update")
    engine.call("update_weights")
    engine.call("finish_weight_update")
    engine.call("resume")
    assert engine.call("weight_checksums") == before
    assert engine.text("old") == expected


def test_weights_that_are_not_to_be_read(engine: Engine, expected: list[int], updates: Path, folder: Path) -> None:
    (updates / "escape").symlink_to(folder)
    engine.add("a")
    engine.run_until("a", 5)
    engine.call("pause", mode="keep", clear_cache=False)
    engine.call("start_weight_update")
    for path in (
        "../",
        "/etc",
        str(folder),
        "none",
        "escape",
        "new/model.safetensors",
        "\0",
        "x" * 5000,
        "misfit",
        "pickle",
    ):
        engine.refusal("update_weights", path=path)
    (updates / "escape").unlink()
    engine.call("finish_weight_update")
    engine.call("resume")
    engine.run()
    assert engine.token_ids["a"] == expected, "what was refused changed nothing"


def test_only_the_models_own_weights_unless_a_folder_is_set(folder: Path, updates: Path) -> None:
    engine = Engine(folder)
    engine.call("pause")
    engine.call("start_weight_update")
    assert "--weight-update-dir" in engine.refusal("update_weights", path=str(updates / "new"))
    assert "--profiler-config" in engine.refusal("start_profile")
    engine.core.shutdown()


def test_a_broken_file_leaves_the_old_weights(engine: Engine, expected: list[int], updates: Path) -> None:
    shutil.copytree(updates / "new", updates / "broken")
    file = updates / "broken" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    engine.call("pause")
    engine.call("start_weight_update")
    engine.refusal("update_weights", path="broken")
    engine.call("finish_weight_update")
    engine.call("resume")
    assert engine.text("a") == expected


def test_weights_are_updated_only_while_nothing_runs(engine: Engine) -> None:
    engine.call("pause")
    engine.call("start_weight_update")
    engine.call("resume")
    assert "Pause the engine" in engine.refusal("update_weights")
    engine.call("finish_weight_update")


def test_one_who_resumes_while_prefixes_are_forgotten_is_not_paused_again(ahead: Engine) -> None:
    ahead.add("a")
    ahead.run_until("a", 3)
    ahead.core.is_paused = True
    assert not ahead.core.is_quiet
    ahead.begin("reset_prefix_cache", reset_running_requests=True)
    ahead.begin("resume")
    ahead.run()
    assert ahead.replies.pop("reset_prefix_cache") == (True, None)
    assert ahead.reasons == {"a": "length"} and not ahead.core.is_paused


def test_what_a_function_does_meanwhile_is_no_state(ahead: Engine) -> None:
    ahead.add("a")
    ahead.run_until("a", 3)
    before = ahead.control.state
    ahead.begin("reset_prefix_cache", reset_running_requests=True)
    assert ahead.core.is_paused and ahead.control.state == before
    ahead.run()
    assert not ahead.core.is_paused and ahead.reasons == {"a": "length"}
    ahead.call("pause")
    assert ahead.control.state.is_paused
    ahead.call("reset_prefix_cache", reset_running_requests=True)
    assert ahead.core.is_paused
    ahead.call("resume")
    assert ahead.control.state == before


@pytest.mark.parametrize("level", [1, 2])
def test_one_that_begins_asleep_holds_nothing_until_it_wakes(folder: Path, expected: list[int], level: int) -> None:
    engine = Engine(folder, state=EngineState(is_paused=True, sleep_level=level, num_blocks=400))
    assert not engine.core.executor.has_weights and engine.core.info.num_blocks == 399
    assert engine.core.stats.is_paused and engine.core.stats.sleep_level == level
    engine.add("a")
    engine.step()
    engine.call("wake_up", tags=["weights"])
    assert engine.core.executor.has_weights and engine.core.stats.sleep_level == level
    engine.call("wake_up")
    engine.run()
    assert engine.token_ids["a"] == expected
    engine.core.shutdown()


def test_one_that_begins_during_an_update_goes_on_with_it(folder: Path, updates: Path) -> None:
    state = EngineState(UpdatedWeights.found_in(updates / "new"), "v2", True, True, num_blocks=513)
    engine = Engine(folder, weight_update_dir=str(updates), state=state)
    assert engine.control.state == state
    engine.call("update_weights")
    engine.call("finish_weight_update")
    assert engine.control.state == EngineState(None, "v2", False, True, num_blocks=513)
    engine.core.shutdown()


@pytest.mark.parametrize("is_asleep", [False, True])
def test_lost_weights_are_never_others(
    folder: Path, updates: Path, expected: list[int], is_asleep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where an engine begins without them, nor where it wakes, nor where an update fails."""
    lost = UpdatedWeights(str(updates / "new"), "of other files")
    engine = Engine(
        folder, weight_update_dir=str(updates), state=EngineState(lost, sleep_level=2 * is_asleep, num_blocks=513)
    )
    assert engine.core.stats.fault == ("" if is_asleep else WEIGHTS_ARE_LOST)
    engine.add("a")
    assert engine.refusal("wake_up") == WEIGHTS_ARE_LOST == engine.core.stats.fault
    broken = updates / f"breaks {is_asleep}"
    shutil.copytree(updates / "new", broken)
    (file,) = broken.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    engine.call("start_weight_update")
    engine.refusal("update_weights", path="none")
    engine.refusal("update_weights", path=broken.name)
    with monkeypatch.context() as patch:
        patch.setattr(engine.core.executor, "check_weights", lambda folder: None)
        engine.refusal("update_weights", path=broken.name)
    engine.step()
    assert not engine.core.executor.has_weights and not engine.token_ids["a"]
    assert engine.core.stats.fault == WEIGHTS_ARE_LOST
    engine.call("update_weights")
    engine.call("finish_weight_update")
    assert not engine.core.stats.fault and not engine.token_ids["a"]
    engine.call("wake_up")
    engine.run()
    assert engine.token_ids["a"] == expected
    engine.core.shutdown()


def test_requests_that_wait_for_grammars_are_here(ahead: Engine) -> None:
    compiling = Compiling()
    ahead.core._constraints._compiler = compiling  # type: ignore[assignment]
    for name in ("chatcmpl-1-0-0123abcd", "b", "c"):
        ahead.add_bound(name)
    assert ahead.core.stats.num_waiting == 3
    with pytest.raises(InvalidRequestError, match="in use"):
        ahead.add("b")
    assert ahead.call_now("abort", request_ids=["chatcmpl-1"]) == ["chatcmpl-1"]
    assert ahead.reasons == {"chatcmpl-1-0-0123abcd": "abort"}
    ahead.begin("pause", mode="wait")
    ahead.step()
    assert "pause" not in ahead.replies and not ahead.core.is_paused
    compiling.futures[1].set_exception(InvalidRequestError("No such grammar."))
    compiling.futures[2].set_exception(InvalidRequestError("No such grammar."))
    ahead.run()
    assert ahead.replies.pop("pause") == (True, None)
    assert ahead.reasons["b"] == ahead.reasons["c"] == "error"
    ahead.add_bound("d")
    ahead.call_now("pause", mode="abort")
    assert ahead.reasons["d"] == "abort" and not ahead.core.has_work
    ahead.call_now("resume")


class Compiling:
    """A compiler that the test plays."""

    def __init__(self) -> None:
        self.futures: list[Future[CompiledGrammar]] = []

    def submit(self, params: StructuredOutputsParams) -> "Future[CompiledGrammar]":
        self.futures.append(Future())
        return self.futures[-1]

    def close(self) -> None:
        pass


def test_answers_are_aborted_by_the_names_that_clients_know(engine: Engine) -> None:
    ids = ["chatcmpl-1-0-0123abcd", "1_chatcmpl-1-0-0123abcd", "chatcmpl-1-0-0-0123abcd", "chatcmpl-10-0-0123abcd"]
    for request_id in ids:
        engine.add(request_id)
    engine.step()
    assert engine.call("abort", request_ids=["chatcmpl-1", "unknown"]) == ["chatcmpl-1"]
    assert {name for name, reason in engine.reasons.items() if reason == "abort"} == set(ids[:2])
    for request_id in ("plain", "0_twins#8", "chatcmpl-2-0-0123abcd#9", "with\nlines#10", ""):
        engine.add(request_id)
    engine.step()
    named = ["plain", "twins", "0_twins", "chatcmpl-2", "with\nlines"]
    assert engine.call("abort", request_ids=named) == ["plain", "0_twins", "chatcmpl-2", "with\nlines"]


def test_a_profile(engine: Engine) -> None:
    engine.call("start_profile")
    assert "already" in engine.refusal("start_profile")
    engine.text("a")
    path = Path(engine.call("stop_profile"))
    assert path.stat().st_size > 1000
    engine.call("start_profile")
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("no folder")
    assert "could not be written" in engine.refusal("stop_profile")
    assert engine.text("a")
