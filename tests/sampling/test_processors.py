"""Custom logit processors: loading, the batch they see, and what they may do."""

import random
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_batch import Batch

from octavo.errors import ConfigError
from octavo.records import NAN_TOKEN, SamplingParams
from octavo.sampling import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, MoveDirectionality
from octavo.sampling.processors import follow, load_processors, processor_classes

CPU = torch.device("cpu")
VOCAB = 50


class Witness(LogitsProcessor):
    """Follows the batch as an author would and pushes each request's own token, named in its parameters."""

    def __init__(self, config: object = None, device: torch.device = CPU, is_pin_memory: bool = False) -> None:
        self.rows: dict[int, tuple[SamplingParams, list[int] | None, list[int]]] = {}
        self.updates: list[BatchUpdate | None] = []
        self.seen: list[dict[int, list[int]]] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)
        if batch_update is not None:
            occupied = {added[0] for added in batch_update.added}
            assert occupied.isdisjoint(batch_update.removed)
            follow(self.rows, batch_update, lambda added: added[1:])
            assert sorted(self.rows) == list(range(batch_update.batch_size))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        assert sorted(self.rows) == list(range(len(logits)))
        self.seen.append({params.extra_args["target"]: list(output) for params, _, output in self.rows.values()})
        for row, (params, _, _) in self.rows.items():
            logits[row, params.extra_args["target"]] += 1000
        return logits


class Flatten(LogitsProcessor):
    """Keeps the likeliest token the likeliest and makes all others equal."""

    def __init__(self, config: object, device: torch.device, is_pin_memory: bool) -> None:
        self.calls = 0

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (logits - logits.amax(-1, keepdim=True)).clamp(min=-1e9, max=0.0).sign() * 1e4


class Repeat(AdapterLogitsProcessor):
    """Forces a token a request names; fails where it is told to."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("force", 0) < 0:
            raise ValueError("force must not be negative.")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams):
        arguments = params.extra_args or {}
        if arguments.get("fail") == "new":
            raise RuntimeError("no")
        if "force" in arguments:
            return self.force(arguments["force"])
        if "prompt" in arguments:
            return lambda prompt, output, logits: logits.index_fill(0, torch.tensor([len(prompt), len(output)]), 99.0)
        if arguments.get("fail") == "apply":
            return lambda output, logits: logits[10**9]
        return None

    @staticmethod
    def force(token: int):
        def process(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            logits[token + len(output)] = 1e6
            return logits

        return process


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_a_processor_follows_any_coming_and_going(seed: int) -> None:
    rng = random.Random(seed)
    witness = Witness()
    batch = Batch(VOCAB, max_num_seqs=8, max_len=128, processors=[witness])
    texts: dict[int, list[int]] = {}
    targets: dict[int, int] = {}
    fresh = iter(range(10**6))
    for _ in range(25):
        for slot in range(8):
            if slot in texts and rng.random() < 0.15:
                batch.sampler.remove(slot)
                del texts[slot]
            if slot not in texts and rng.random() < 0.3:
                targets[slot] = next(fresh) % VOCAB
                output = [rng.randrange(VOCAB) for _ in range(rng.choice([0, 0, 3]))]
                params = SamplingParams(temperature=0, extra_args={"target": targets[slot]})
                batch.add(slot, params, prompt=[1, 2], output=output)
                texts[slot] = output
        step = [slot for slot in texts if rng.random() < 0.8]
        rng.shuffle(step)
        tokens = batch.step(torch.randn(len(step), VOCAB), step)
        if not step:
            continue
        assert tokens == [targets[slot] for slot in step]
        for slot in step:
            if sum(targets[other] == targets[slot] for other in step) == 1:
                assert witness.seen[-1][targets[slot]] == texts[slot]
            texts[slot].append(targets[slot])


def test_nothing_is_announced_while_the_batch_stays() -> None:
    witness = Witness()
    batch = Batch(VOCAB, processors=[witness])
    for slot in range(3):
        batch.add(slot, SamplingParams(temperature=0, extra_args={"target": slot}), prompt=[4, slot])
    for order in ([0, 1, 2], [2, 0, 1], [0, 1, 2]):
        assert batch.step(torch.zeros(3, VOCAB), order) == order
    assert witness.updates[1:] == [None, None]
    first = witness.updates[0]
    assert first is not None
    assert [(row, prompt) for row, _, prompt, _ in first.added] == [(0, [4, 0]), (1, [4, 1]), (2, [4, 2])]

    batch.step(torch.zeros(1, VOCAB), [2])
    update = witness.updates[-1]
    assert update is not None
    assert (update.batch_size, list(update.removed), list(update.added)) == (1, [0, 1], [])
    assert list(update.moved) == [(2, 0, MoveDirectionality.UNIDIRECTIONAL)]
    # The lists handed over at the start have grown with the text.
    assert first.added[2][3] == [2, 2, 2]


def test_invariant_processors_leave_greedy_rows_alone() -> None:
    flatten = Flatten(None, CPU, False)
    batch = Batch(VOCAB, processors=[flatten])
    batch.add(0, SamplingParams(temperature=0))
    batch.add(1, SamplingParams(temperature=5.0))
    logits = torch.randn(2, VOCAB)
    assert batch.sample(logits, [1, 0]).token_ids.tolist() == logits.argmax(-1).tolist()
    assert flatten.calls == 1


def test_adapters_serve_each_request() -> None:
    batch = Batch(VOCAB, processors=[Repeat(None, CPU, False)])
    arguments = [{"force": 7}, None, {"prompt": True}, {"fail": "new"}, {"fail": "apply"}]
    for slot, extra in enumerate(arguments):
        batch.add(slot, SamplingParams(temperature=0, extra_args=extra), prompt=[1, 2, 3, 4])
    logits = torch.randn(5, VOCAB)
    plain = int(logits[1].argmax())
    assert batch.step(logits, range(5)) == [7, plain, 0, NAN_TOKEN, NAN_TOKEN]
    assert batch.step(logits[:3], range(3)) == [8, plain, 1]


def test_follow_moves_and_swaps() -> None:
    entries = {0: "a", 1: "b", 2: "c"}
    moved = [(2, 0, MoveDirectionality.UNIDIRECTIONAL), (0, 1, MoveDirectionality.SWAP)]
    follow(entries, BatchUpdate(2, [], [], moved), lambda _: None)
    assert entries == {0: "b", 1: "c"}
    follow(entries, BatchUpdate(2, [], [(1, SamplingParams(), [], [])], []), lambda _: None)
    assert entries == {0: "b"}


def test_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_processors")
    module.Repeat, module.outer, module.number = Repeat, module, 5  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "my_processors", module)
    assert processor_classes(["my_processors:Repeat", "my_processors:outer.Repeat", Witness]) == [
        Repeat,
        Repeat,
        Witness,
    ]
    loaded = load_processors(["my_processors:Repeat", Flatten], None, CPU)
    assert [type(processor) for processor in loaded] == [Repeat, Flatten]
    with pytest.raises(ValueError, match="force"):
        processor_classes(["my_processors:Repeat"])[0].validate_params(SamplingParams(extra_args={"force": -1}))


class Abstract(LogitsProcessor):
    """Lacks everything."""


class Stubborn(Flatten):
    """Cannot start."""

    def __init__(self, config: object, device: torch.device, is_pin_memory: bool) -> None:
        raise RuntimeError("the grammar file is missing")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("my_processors", "package.module:Class"),
        (":Class", "package.module:Class"),
        ("no_such_module_anywhere:Class", "cannot be imported"),
        ("octavo.errors:Nothing", "has no 'Nothing'"),
        ("octavo.errors:ConfigError", "does not implement apply, is_argmax_invariant, update_state"),
        (int, "does not implement apply, is_argmax_invariant, update_state"),
        ("octavo.errors:__doc__", "is not a class"),
        (Abstract, "does not implement __init__, apply, is_argmax_invariant, update_state"),
        (Stubborn, "grammar file is missing"),
    ],
)
def test_what_cannot_be_loaded_is_named(spec: type | str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_processors([spec], None, CPU)
