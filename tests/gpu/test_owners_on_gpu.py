"""Sleep gives a GPU's memory back, and waking brings the same texts; new weights take effect; vectors equal a CPU's."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[1]))
from tiny_bert import SETTINGS as BERT_SETTINGS
from tiny_bert import write_bert
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def texts(llm: LLM) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(["tea", "milk and"] * 4, GREEDY, use_tqdm=False)]


def used() -> int:
    """Bytes of the device that anybody uses: nobody else may."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def test_sleep_and_new_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (tmp_path / "updates" / "new").mkdir(parents=True)
    torch.manual_seed(5)
    changed = {n: t + 0.1 * torch.randn_like(t) for n, t in load_file(folder / "model.safetensors").items()}
    save_file(changed, tmp_path / "updates" / "new" / "model.safetensors")
    llm = LLM(
        str(folder),
        weight_update_dir=str(tmp_path / "updates"),
        **(SETTINGS | {"device": "cuda", "enforce_eager": True}),
    )
    expected, awake = texts(llm), used()
    for level in (1, 2):
        llm.sleep(level)
        assert awake - used() > 16 << 20
        llm.wake_up()
        assert texts(llm) == expected
    llm.update_weights("new", "v2")
    assert texts(llm) != expected
    llm.update_weights()
    assert texts(llm) == expected
    llm.shutdown()


@pytest.mark.parametrize("kind", ["embed", "classify"])
def test_vectors(tmp_path: Path, kind: str) -> None:
    folder = write_bert(tmp_path / kind, kind)
    found = []
    for device in ("cpu", "cuda"):
        llm = LLM(str(folder), **(BERT_SETTINGS | {"device": device}))
        outputs = llm.encode(["a cat purrs", "the dog barks", "stocks fell"] * 3, use_tqdm=False)
        found.append([np.asarray(output.outputs.data) for output in outputs])
        llm.shutdown()
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
