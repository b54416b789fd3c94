"""Grammars bind texts on a GPU as on a CPU: masks reach the logits between two graphs, also in mixed batches."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams, StructuredOutputsParams

FORMS: list[StructuredOutputsParams | None] = [
    StructuredOutputsParams(regex="[a-f]{12}"),
    None,
    StructuredOutputsParams(choice=["tea", "milk", "a cup of tea"]),
    StructuredOutputsParams(
        json={"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def texts(folder: Path, **settings: Any) -> list[str]:
    llm = LLM(str(folder), **(SETTINGS | settings))
    params = [
        SamplingParams(
            temperature=0.9 if index % 2 else 0,
            presence_penalty=0.5 if index % 3 == 2 else 0,
            seed=index,
            max_tokens=48,
            structured_outputs=FORMS[index % len(FORMS)],
        )
        for index in range(12)
    ]
    found = [output.outputs[0].text for output in llm.generate(["tea and "] * 12, params, use_tqdm=False)]
    llm.shutdown()
    return found


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enforce_eager": True},
        {"max_num_batched_tokens": 16},
        {"speculative_config": DRAFTS},
        {"speculative_config": DRAFTS, "enforce_eager": True},
        {"speculative_config": DRAFTS, "max_num_seqs": 4, "max_num_batched_tokens": 16},
    ],
)
def test_bound_texts_are_the_same_as_on_a_cpu(folder: Path, settings: dict[str, Any]) -> None:
    on_gpu = texts(folder, device="cuda", **settings)
    assert on_gpu == texts(folder)
    assert set(on_gpu[2::4]) <= {"tea", "milk", "a cup of tea"}
    assert all(len(text) == 12 for text in on_gpu[::4])
    for text in on_gpu[3::4]:
        if text.endswith("}"):
            assert json.loads(text)["a"] <= 99
