"""A start for which the device's memory does not do ends with a sentence."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM
from octavo.errors import ConfigError
from octavo.execution import worker

sys.path.append(str(Path(__file__).parents[1]))
from tiny_llama import SETTINGS, write_model


@pytest.mark.parametrize("function", ["load_weights", "build_runner"])
def test_running_out_of_memory_is_a_sentence(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(worker, function, run_out)
    with pytest.raises(ConfigError, match=r"ran out while .* Lower gpu_memory_utilization.*max_num_seqs.*smaller"):
        LLM(str(write_model(tmp_path)), **SETTINGS)
