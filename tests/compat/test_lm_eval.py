"""lm-eval's own ``vllm`` backend, unmodified, on Octavo: the numbers of its ``hf`` backend."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from compat.conftest import run_python

from octavo.hub import resolve

BACKENDS = Path(__file__).parent / "lm_eval_backends.py"
TOLERANCE = 1e-3

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed: pip install lm-eval==0.4.13"
)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as a Hugging Face folder in float32, dequantised by transformers."""
    from parity.gguf_reference import load_reference_model, load_reference_tokenizer

    path = resolve("bundled:smollm2").path
    folder = tmp_path_factory.mktemp("smollm2")
    load_reference_model(path).save_pretrained(folder)
    load_reference_tokenizer(path).save_pretrained(folder)
    return folder


def _answers(*arguments: str) -> Any:
    return json.loads(run_python(*arguments).splitlines()[-1])


def test_the_vllm_backend_gives_the_numbers_of_the_hf_backend(smollm2: Path) -> None:
    ours = _answers("-m", "octavo.compat", str(BACKENDS), "vllm", str(smollm2))
    theirs = _answers(str(BACKENDS), "hf", str(smollm2))
    for (our_sum, our_greedy), (their_sum, their_greedy) in zip(
        ours["loglikelihood"], theirs["loglikelihood"], strict=True
    ):
        assert our_sum == pytest.approx(their_sum, rel=0, abs=TOLERANCE)
        assert our_greedy == their_greedy
    assert ours["rolling"] == pytest.approx(theirs["rolling"], rel=0, abs=TOLERANCE)
    assert ours["generated"] == theirs["generated"]
