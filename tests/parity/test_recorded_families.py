"""On CPUs, small decode steps of every family are replayed without Python, and compute what steps that are run do.

Of models with the transformers library's modules, some compute in ways that cannot be replayed.
"""

from collections.abc import Callable
from typing import Any

import pytest
from tiny import generic
from tiny_checkpoints import CONFIGS, Checkpoint

from octavo import LLM, RequestOutput, SamplingParams
from octavo.execution import recorded
from octavo.platforms.native import native_kernels
from octavo.platforms.recording import Recording

pytestmark = pytest.mark.skipif(
    native_kernels() is None, reason="only compiled kernels can be recorded; run on an AMD EPYC"
)

PROMPTS = [[3, 4, 5, 6, 7], [8, 9, 10]]


def _generate(llm: LLM) -> list[RequestOutput]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3, detokenize=False)
    return llm.generate(PROMPTS, params, use_tqdm=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_decode_steps_are_replayed(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[set[str]] = []
    leave = Recording.__exit__

    def leave_and_note(self: Recording, *exception: Any) -> None:
        leave(self, *exception)
        others.append(self.others)

    monkeypatch.setattr(Recording, "__exit__", leave_and_note)
    settings = {"dtype": "bfloat16", "device": "cpu", "block_size": 16}
    found = _generate(start(checkpoint(name), **settings))
    assert others, "no step was recorded"
    assert name in generic.NOT_RECORDED or not set.union(*others), (
        "PyTorch's operations, which keep the step from being replayed"
    )
    monkeypatch.setattr(recorded, "_MAX_TOKENS", 0)
    others.clear()
    expected = _generate(start(checkpoint(name), **settings))
    assert not others
    for output, wanted in zip(found, expected, strict=True):
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
        assert output.outputs[0].logprobs == wanted.outputs[0].logprobs
