"""Models that people use, in float32 on the same dequantised weights: Octavo first, Hugging Face after it."""

import gc
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from comparison import reference_logprobs
from fetch_weights import FetchError, find_or_fetch
from gguf_reference import load_reference_model, load_reference_tokenizer
from passage import HARD_TEXTS, PASSAGE

from octavo import LLM, SamplingParams
from octavo.hub import resolve

pytestmark = pytest.mark.long

PROMPT = "The old lighthouse keeper climbed the stairs and"
NUM_TOKENS = 64

# Their published tokenizers compose characters first (NFC). A GGUF file has no word for it, and transformers leaves it
# out where it reads one.
COMPOSING = {"qwen2.5-coder-1.5b"}

MODELS = [
    pytest.param("smollm2", id="smollm2"),
    pytest.param("gemma3-270m", marks=pytest.mark.slow, id="gemma3-270m"),
    pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.slow, id="qwen2.5-coder-1.5b"),
]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one of the two makes of a model file.

    Attributes:
        answer_ids: what greedy search puts behind :data:`PROMPT`.
        answer: the same as text.
        perplexity: of :data:`PASSAGE`.
        encodings: token ids of :data:`PASSAGE` and :data:`HARD_TEXTS`.
    """

    answer_ids: list[int]
    answer: str
    perplexity: float
    encodings: list[list[int]]


@pytest.fixture(scope="module", params=MODELS)
def readings(request: pytest.FixtureRequest) -> tuple[Reading, Reading]:
    """Octavo's and Hugging Face's."""
    path = _find(request.param)
    ours = _read_with_octavo(path)
    gc.collect()
    return ours, _read_with_transformers(path, ours.answer_ids, composes=request.param in COMPOSING)


def test_greedy_text_is_the_same(readings: tuple[Reading, Reading]) -> None:
    ours, theirs = readings
    assert len(ours.answer_ids) == NUM_TOKENS
    assert ours.answer_ids == theirs.answer_ids
    assert ours.answer == theirs.answer


def test_perplexity_is_the_same(readings: tuple[Reading, Reading]) -> None:
    ours, theirs = readings
    assert 1 < theirs.perplexity < 100  # they read it as a language, not as noise
    assert ours.perplexity == pytest.approx(theirs.perplexity, rel=1e-3)


def test_texts_become_the_same_tokens(readings: tuple[Reading, Reading]) -> None:
    ours, theirs = readings
    for text, our_ids, their_ids in zip((PASSAGE, *HARD_TEXTS), ours.encodings, theirs.encodings, strict=True):
        assert our_ids == their_ids, text


def _find(name: str) -> Path:
    if name == "smollm2":
        return resolve("bundled:smollm2").path
    try:
        return find_or_fetch(name)
    except FetchError as error:
        pytest.skip(str(error))


def _read_with_octavo(path: Path) -> Reading:
    llm = LLM(
        str(path),
        dtype="float32",
        device="auto",
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        kv_cache_memory_bytes=256 << 20,
        num_threads=1,
        use_tqdm_on_load=False,
    )
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, skip_special_tokens=False)
    scoring = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    answer, passage = llm.generate([PROMPT, PASSAGE], [greedy, scoring], use_tqdm=False)
    assert passage.prompt_token_ids is not None
    assert passage.prompt_logprobs is not None
    logprobs = [
        entry[token_id].logprob
        for token_id, entry in zip(passage.prompt_token_ids, passage.prompt_logprobs, strict=True)
        if entry is not None
    ]
    encodings = [llm.get_tokenizer().encode(text) for text in (PASSAGE, *HARD_TEXTS)]
    llm.shutdown()
    completion = answer.outputs[0]
    return Reading(list(completion.token_ids), completion.text, _perplexity(logprobs), encodings)


def _read_with_transformers(path: Path, answer_ids: list[int], *, composes: bool) -> Reading:
    """Greedy search is followed, not repeated: the model sees the prompt with ``answer_ids`` behind it and says at each
    place which token it would have taken. The first that differs is the first that its own search would have taken."""
    tokenizer = load_reference_tokenizer(path)
    texts = [unicodedata.normalize("NFC", text) if composes else text for text in (PASSAGE, *HARD_TEXTS)]
    encodings = [tokenizer(text)["input_ids"] for text in texts]
    prompt_ids = tokenizer(PROMPT)["input_ids"]
    model = load_reference_model(path)
    followed = reference_logprobs(model, [*prompt_ids, *answer_ids])[len(prompt_ids) - 1 : -1]
    chosen = followed.argmax(-1).tolist()
    passage = torch.tensor(encodings[0][1:])
    logprobs = reference_logprobs(model, encodings[0])[:-1].gather(1, passage[:, None])[:, 0]
    return Reading(chosen, tokenizer.decode(chosen), _perplexity(logprobs.tolist()), encodings)


def _perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))
