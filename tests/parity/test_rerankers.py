"""Rerankers that answer with a token, in float32, against the probabilities that Hugging Face's model gives it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from pooling_checkpoints import VOCAB_SIZE, PoolingCheckpoint, write_pooling_checkpoint
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from octavo import LLM
from octavo.errors import UnsupportedModelError

TOLERANCE = 1e-5
QUERY = "What is the capital of China?"
DOCUMENTS = ["The capital of China is Beijing.", "Gravity attracts bodies towards each other.", "Beijing"]
QWEN3 = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}
TEMPLATE = "{% for message in messages %}{{ message.role }} : {{ message.content }} {% endfor %}answer :"


def qwen3_prompt(query: str, document: str) -> str:
    """A pair as https://huggingface.co/Qwen/Qwen3-Reranker-0.6B writes it."""
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def write_reranker(name: str, folder: Path) -> tuple[PoolingCheckpoint, Tokenizer]:
    """A checkpoint with a tokenizer that knows every word of these tests; words are what stands between spaces."""
    source = write_pooling_checkpoint(name, folder)
    texts = [*(qwen3_prompt(QUERY, document) for document in DOCUMENTS), "query : document : answer : no yes maybe"]
    words = list(dict.fromkeys(" ".join(texts).split()))
    assert len(words) < VOCAB_SIZE - 3
    vocabulary = {word: index + 3 for index, word in enumerate(words)} | {"<unk>": 0}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    return source, tokenizer


def start(folder: Path, **settings: Any) -> LLM:
    sizes = {"max_num_seqs": 8, "num_gpu_blocks_override": 512, "num_threads": 1, "block_size": 4}
    return LLM(str(folder), dtype="float32", device="cpu", use_tqdm_on_load=False, **sizes, **settings)


@contextmanager
def closing(llm: LLM) -> Iterator[None]:
    try:
        yield
    finally:
        llm.shutdown()


def scores(llm: LLM) -> list[float]:
    with closing(llm):
        return [output.outputs.score for output in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]


@torch.inference_mode()
def last_logits(source: PoolingCheckpoint, tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """``[texts, outputs]`` after the last token."""
    logits = [source.model(torch.tensor([tokenizer.encode(text).ids])).logits[0] for text in texts]
    return torch.stack([found if found.dim() == 1 else found[-1] for found in logits])


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied"])
def test_qwen3_as_published(name: str, tmp_path: Path) -> None:
    source, tokenizer = write_reranker(name, tmp_path)
    found = scores(start(tmp_path, runner="pooling", hf_overrides=QWEN3))
    logits = last_logits(source, tokenizer, [qwen3_prompt(QUERY, document) for document in DOCUMENTS])
    ids = [tokenizer.token_to_id(token) for token in ("no", "yes")]
    expected = logits[:, ids].softmax(1)[:, 1]
    assert found == pytest.approx(expected.tolist(), abs=TOLERANCE)
    assert len({round(score, 3) for score in found}) == len(DOCUMENTS)


def test_qwen3_as_a_converted_classifier(tmp_path: Path) -> None:
    source, tokenizer = write_reranker("qwen3-classifier", tmp_path)
    texts = [f"query : {QUERY} document : {document} answer :" for document in DOCUMENTS]
    expected = last_logits(source, tokenizer, texts).sigmoid()[:, 0]
    assert scores(start(tmp_path, chat_template=TEMPLATE)) == pytest.approx(expected.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("tokens", [["yes"], ["no", "yes", "maybe"]])
def test_rows_of_the_head_as_they_are(tokens: list[str], tmp_path: Path) -> None:
    source, tokenizer = write_reranker("qwen3", tmp_path)
    overrides = {**QWEN3, "classifier_from_token": tokens, "method": "no_post_processing"}
    llm = start(tmp_path, hf_overrides=overrides | {"is_original_qwen3_reranker": False})
    logits = last_logits(source, tokenizer, DOCUMENTS)[:, [tokenizer.token_to_id(token) for token in tokens]]
    expected = logits.sigmoid() if len(tokens) == 1 else logits.softmax(1)
    with closing(llm):
        for output, wanted in zip(llm.classify(DOCUMENTS, use_tqdm=False), expected, strict=True):
            assert output.outputs.probs == pytest.approx(wanted.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"classifier_from_token": ["no"]}, "two tokens"),
        ({"classifier_from_token": ["no", "perhaps"]}, "'perhaps'"),
        ({"classifier_from_token": None}, "a list of tokens"),
        ({"is_original_qwen3_reranker": False}, "from_2_way_softmax or no_post_processing"),
    ],
)
def test_keys_that_do_not_go_together(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    write_reranker("qwen3", tmp_path)
    with pytest.raises(UnsupportedModelError, match=named):
        start(tmp_path, hf_overrides=QWEN3 | changes)
