"""A sentence encoder that people use, with its real weights, against what it is defined to be."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fetch_minilm import fetch_minilm, find_minilm
from fetch_weights import FetchError
from passage import HARD_TEXTS, PASSAGE
from transformers import AutoModel, AutoTokenizer

from octavo import LLM

TEXTS = ["A cat purrs.", "Felines make soft sounds.", "The stock market fell.", PASSAGE, *HARD_TEXTS]
MAX_LENGTH = 256


def _find_folder(*, may_fetch: bool) -> Path:
    found = find_minilm()
    if found is None and may_fetch:
        try:
            found = fetch_minilm()
        except FetchError as error:
            pytest.skip(str(error))
    if found is None:
        pytest.skip("the weights are not here; python tests/parity/fetch_minilm.py fetches them; ran on 2 CPU cores")
    return found


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["at hand", "fetched"])
def folder(request: pytest.FixtureRequest) -> Path:
    """The model's folder."""
    return _find_folder(may_fetch=request.param)


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    """Octavo on it, with default settings."""
    llm = LLM(str(folder), device="cpu", num_threads=1, use_tqdm_on_load=False)
    yield llm
    llm.shutdown()


@torch.inference_mode()
def _expected(folder: Path, texts: list[str]) -> torch.Tensor:
    """The mean of the last layer's states over a text's tokens, brought to length 1, as the model card has it."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        rows.append(F.normalize(model(**inputs).last_hidden_state[0].mean(0), dim=0))
    return torch.stack(rows)


def test_embeddings_are_the_published_models(folder: Path, llm: LLM) -> None:
    outputs = llm.embed(TEXTS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
    found = torch.tensor([output.outputs.embedding for output in outputs])
    torch.testing.assert_close(found, _expected(folder, TEXTS), rtol=0, atol=1e-5)


def test_texts_of_like_meaning_are_near_each_other(llm: LLM) -> None:
    near, far = (output.outputs.score for output in llm.score(TEXTS[0], TEXTS[1:3], use_tqdm=False))
    assert near > 0.3 > far
