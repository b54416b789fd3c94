"""Vectors over HTTP: the official client, every shape of input and answer, and what is refused."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pooling_engine import PoolingEngine
from running_server import RunningServer, start
from tiny_bert import COLBERT_DIM, HIDDEN, MAX_LENGTH, write_bert

from octavo.api import ignored_fields
from octavo.api.pooling.encoding import pack_bits, to_bytes
from octavo.api.pooling.protocol import MAX_INPUTS, EmbedDType
from octavo.inputs import scoring
from octavo.inputs.texts import BareText
from octavo.tokenization import Tokenizer

Serve = Callable[..., RunningServer]
TEXTS = ["a cat purrs", "the dog barks", "stocks fell"]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, stopped_servers: list[RunningServer]) -> Iterator[Serve]:
    """Servers around small encoders, one of a kind."""
    servers: dict[str, RunningServer] = {}

    def serve_one(kind: str) -> RunningServer:
        if kind not in servers:
            changes = {"matryoshka_dimensions": [8, 16]} if kind == "embed" else {}
            engine = PoolingEngine(write_bert(tmp_path_factory.mktemp(kind), kind, **changes))
            servers[kind] = start(engine)  # type: ignore[arg-type]
        return servers[kind]

    yield serve_one
    for server in servers.values():
        server.stop()
        stopped_servers.append(server)


@pytest.fixture
def client(serve: Serve) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serve('embed').url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return server.client.post(path, json=body)


def embed(server: RunningServer, given: Any, **body: Any) -> list[list[float]]:
    answer = post(server, "/v1/embeddings", input=given, **body)
    assert answer.status_code == 200, answer.text
    return [item["embedding"] for item in answer.json()["data"]]


def error_of(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status
    message: str = answer.json()["error"]["message"]
    return message


def test_the_official_client_gets_embeddings(client: openai.OpenAI, serve: Serve) -> None:
    as_base64 = client.embeddings.create(model="tiny", input=TEXTS)  # the client asks for base64 by itself
    as_floats = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    offline = serve("embed").engine.llm.embed(TEXTS, use_tqdm=False)
    assert [item.index for item in as_base64.data] == [0, 1, 2]
    for first, second, wanted in zip(as_base64.data, as_floats.data, offline, strict=True):
        assert np.allclose(first.embedding, wanted.outputs.embedding, atol=1e-6)
        assert np.allclose(second.embedding, wanted.outputs.embedding, atol=1e-6)
    num_tokens = sum(len(output.prompt_token_ids) for output in offline)
    assert (as_floats.usage.prompt_tokens, as_floats.usage.total_tokens) == (num_tokens, num_tokens)


def test_inputs_of_one_request_run_side_by_side(client: openai.OpenAI, serve: Serve) -> None:
    client.embeddings.create(model="tiny", input=TEXTS * 10)
    assert serve("embed").engine.batches[-1] == 30


def test_cut_embeddings(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model="tiny", input="a cat", encoding_format="float").data[0].embedding
    cut = client.embeddings.create(model="tiny", input="a cat", dimensions=8, encoding_format="float").data[0].embedding
    assert np.allclose(cut, np.array(whole[:8]) / np.linalg.norm(whole[:8]), atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions must be one of 8, 16, got 9"):
        client.embeddings.create(model="tiny", input="a cat", dimensions=9)


def test_a_text_may_come_as_tokens_or_as_a_conversation(serve: Serve) -> None:
    server = serve("embed")
    token_ids = server.engine.tokenizer.encode("a cat purrs")
    (wanted,) = embed(server, "a cat purrs")
    assert embed(server, token_ids) == [wanted]
    assert embed(server, [token_ids, token_ids]) == [wanted, wanted]
    messages = [{"role": "user", "content": "a cat"}, {"role": "user", "content": "purrs"}]
    for body in ({"messages": messages}, {"messages": [messages]}, {"input": messages}):
        answer = post(server, "/v1/embeddings", add_special_tokens=True, **body)
        assert answer.json()["data"][0]["embedding"] == wanted


def test_texts_are_filled_up_with_padding(serve: Serve) -> None:
    server = serve("embed")
    tokenizer = server.engine.tokenizer
    ids = [*tokenizer.encode("a cat"), *[tokenizer.pad_token_id] * MAX_LENGTH]
    answer = post(server, "/v1/embeddings", input="a cat", padding="max_length").json()
    assert answer["usage"]["prompt_tokens"] == MAX_LENGTH
    assert answer["data"][0]["embedding"] == embed(server, ids[:MAX_LENGTH])[0]
    assert embed(server, "a cat", padding="max_length", truncate_prompt_tokens=7) == embed(server, ids[:7])
    assert embed(server, "a cat", padding="do_not_pad") == embed(server, "a cat")


def test_long_texts_are_refused_or_cut(serve: Serve) -> None:
    server = serve("embed")
    text = "cat " * 100
    refusal = error_of(post(server, "/v1/embeddings", input=text))
    assert refusal.startswith(f"The input has 102 tokens; the model takes at most {MAX_LENGTH}.")
    assert embed(server, text, truncate_prompt_tokens=-1) == embed(server, "cat " * (MAX_LENGTH - 2))
    assert embed(server, "dog " + text, truncate_prompt_tokens=5) == embed(server, "dog cat cat")
    left = embed(server, "dog " + text, truncate_prompt_tokens=5, truncation_side="left")
    assert left == embed(server, "cat cat cat")
    assert embed(server, [7, 8, 9, 10], truncate_prompt_tokens=2) == embed(server, [7, 8])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "Give either input or messages."),
        ({"input": []}, "There is no input: the list is empty."),
        ({"input": [[]]}, "The prompt is empty: it has no tokens."),
        ({"input": {"a": 1}}, "input: Value error, it must be a string, a list of strings,"),
        ({"input": [[1], ["a"]]}, "input: Value error, it must be a string, a list of strings,"),
        ({"input": [1, 999]}, "prompt holds the token id 999, "),
        ({"input": [1, -1]}, "prompt holds the token id -1, "),
        ({"input": ["cat"] * (MAX_INPUTS + 1)}, f"One request takes 1 to {MAX_INPUTS} inputs, got {MAX_INPUTS + 1}."),
        ({"input": "cat", "dimensions": 0}, "dimensions must be a whole number of at least 1"),
        ({"input": "cat", "dimensions": 999}, "dimensions must be one of 8, 16, got 999."),
        ({"input": "cat", "truncate_prompt_tokens": 41}, "truncate_prompt_tokens value is greater than max_model_len."),
        ({"input": ["cat"] * 65, "padding": "max_length"}, "padding: one request may pad at most 64"),
        ({"input": "cat", "encoding_format": "hex"}, "encoding_format:"),
        ({"input": "cat", "late_chunking_params": {"chunk_size": 2}}, "late_chunking_params: late chunking is not"),
        ({"input": "cat", "chat_template": "x"}, "chat_template: a template runs on the server"),
        ({"input": ["cat"] * 300, "encoding_format": "bytes"}, "encoding_format 'bytes' describes at most 256"),
        ({"messages": []}, "There is no input"),
    ],
)
def test_what_cannot_be_is_rejected_with_an_error(body: dict[str, Any], sentence: str, serve: Serve) -> None:
    assert error_of(post(serve("embed"), "/v1/embeddings", **body)).startswith(sentence)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_model_of_vectors_writes_no_text(path: str, serve: Serve) -> None:
    answer = post(serve("embed"), path, prompt="x", messages=[{"role": "user", "content": "x"}])
    assert "is a pooling model, which does not generate text" in error_of(answer)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/score", "/v2/rerank", "/v2/embed"])
def test_a_model_of_text_gives_no_vectors(path: str, server: RunningServer) -> None:
    bodies = {"/score": {"text_1": "a", "text_2": "b"}, "/v2/rerank": {"query": "a", "documents": ["b"]}}
    answer = post(server, path, **bodies.get(path, {"texts": ["a"]} if path == "/v2/embed" else {"input": "a"}))
    assert isinstance(server.engine, FakeEngine)
    assert "start it with --runner pooling" in error_of(answer)


def test_bytes_come_with_their_places(serve: Serve) -> None:
    server = serve("embed")
    wanted = np.array(embed(server, TEXTS), np.float32)
    answer = post(
        server, "/v1/embeddings", input=TEXTS, encoding_format="bytes", embed_dtype="float16", endianness="big"
    )
    metadata = json.loads(answer.headers["metadata"])
    assert answer.headers["content-type"] == "application/octet-stream"
    for row, place in enumerate(metadata["data"]):
        part = answer.content[place["start"] : place["end"]]
        assert (place["index"], place["shape"], place["embed_dtype"]) == (row, [HIDDEN], "float16")
        assert np.allclose(np.frombuffer(part, ">f2"), wanted[row], atol=1e-3)
    bare = post(server, "/v1/embeddings", input=TEXTS, encoding_format="bytes_only")
    assert "metadata" not in bare.headers
    assert np.allclose(np.frombuffer(bare.content, np.float32).reshape(3, -1), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("embed", "/v1/embeddings", {"input": "cat"}),
        ("embed", "/v1/embeddings", {"messages": [{"role": "user", "content": "cat"}]}),
        ("embed", "/pooling", {"input": "cat"}),
        ("embed", "/v2/embed", {"texts": ["cat"], "input_type": "search_query"}),
        ("embed", "/score", {"text_1": "cat", "text_2": "dog"}),
        ("embed", "/v1/rerank", {"query": "cat", "documents": ["dog"]}),
        ("classify", "/classify", {"input": "cat"}),
    ],
)
def test_fields_that_nothing_reads_are_told(serve: Serve, kind: str, path: str, body: dict[str, Any]) -> None:
    """As on the routes that generate text; see ``test_ignored_fields.py``."""
    answer = post(serve(kind), path, **body, no_such_field=1, truncation_side=None)
    assert answer.status_code == 200, answer.text
    assert answer.headers[ignored_fields.HEADER] == "no_such_field"
    assert ignored_fields.HEADER not in post(serve(kind), path, **body).headers


def test_tasks_that_the_model_is_not_made_for(serve: Serve) -> None:
    """Sentences begin as vLLM's."""
    known = (("classify", "Unsupported task: 'classify'; Classification API"), ("plugin", "No IOProcessor plugin"))
    for task, beginning in known:
        answer = post(serve("embed"), "/pooling", input="cat", task=task)
        assert answer.status_code == 400 and error_of(answer).startswith(beginning)


def test_vectors_of_tokens(serve: Serve) -> None:
    answer = post(serve("embed"), "/pooling", input="a cat", task="token_embed").json()
    assert np.array(answer["data"][0]["data"]).shape == (4, HIDDEN)
    packed = post(serve("colbert"), "/pooling", input=["a cat", "a"], encoding_format="base64").json()
    sizes = [len(base64.b64decode(item["data"])) for item in packed["data"]]
    assert sizes == [4 * COLBERT_DIM * 4, 3 * COLBERT_DIM * 4]
    refusal = error_of(post(serve("colbert"), "/v1/embeddings", input="a"))
    assert refusal == "This model gives a vector for each token; use /pooling, /score or /rerank."


def test_a_request_keeps_the_id_that_its_client_gave(serve: Serve) -> None:
    answer = post(serve("embed"), "/pooling", input="a cat", request_id="mine").json()
    assert answer["id"] == "pooling-mine"


def test_cohere_inputs_of_a_kind_that_nobody_knows_are_rejected(serve: Serve) -> None:
    body = {"model": "tiny", "texts": ["a cat"]}
    answer = post(serve("embed"), "/v2/embed", **body, input_type="clustering").json()
    assert answer["meta"]["billed_units"]["image_tokens"] == 0
    rejected = post(serve("embed"), "/v2/embed", **body, input_type="poetry")
    assert rejected.status_code == 400
    assert "Unsupported input_type 'poetry'" in rejected.text


def test_an_answer_of_gigabytes_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.api.pooling.inputs.MAX_NUMBERS", 3 * HIDDEN)
    assert len(embed(serve("embed"), TEXTS)) == 3
    answer = post(serve("embed"), "/pooling", input="a cat", task="token_embed")
    assert error_of(answer).startswith(f"The answer would hold {4 * HIDDEN} numbers; at most {3 * HIDDEN} go into one.")


def test_many_documents_of_a_late_query_come_in_portions(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("colbert")
    body = {"text_1": "a cat", "text_2": TEXTS * 2}
    whole = post(server, "/score", **body).json()["data"]
    monkeypatch.setattr("octavo.inputs.scoring.MAX_QUERY_BYTES", 2 * 4 * COLBERT_DIM * 4)
    assert post(server, "/score", **body).json()["data"] == whole
    assert server.engine.batches[-4:] == [1, 2, 2, 2]


def test_classes(serve: Serve) -> None:
    server = serve("classify")
    answer = post(server, "/classify", input=TEXTS).json()
    for item in answer["data"]:
        assert sum(item["probs"]) == pytest.approx(1, abs=1e-5)
        assert item["label"] == ["good", "bad", "neither"][int(np.argmax(item["probs"]))]
        assert item["num_classes"] == 3
    logits = post(server, "/classify", input=TEXTS[0], use_activation=False).json()["data"][0]["probs"]
    assert torch.tensor(logits).softmax(0).tolist() == pytest.approx(answer["data"][0]["probs"], abs=1e-5)
    assert "Scores need a model of one class" in error_of(post(server, "/score", text_1="a", text_2="b"))
    assert "use /classify" in error_of(post(server, "/v1/embeddings", input="a"))


@pytest.mark.parametrize("kind", ["embed", "cross-encoder", "colbert"])
def test_scores_and_ranks_agree(kind: str, serve: Serve) -> None:
    server = serve(kind)
    answer = post(server, "/v1/score", queries="what makes a sound", documents=TEXTS).json()
    scores = [item["score"] for item in answer["data"]]
    assert len(set(scores)) == 3
    pairs = post(server, "/score", text_1=["what makes a sound"] * 3, text_2=TEXTS).json()
    assert [item["score"] for item in pairs["data"]] == pytest.approx(scores, abs=1e-5)
    documents = [TEXTS[0], {"text": TEXTS[1]}, {"content": [{"type": "text", "text": TEXTS[2]}]}]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        ranks = post(server, path, query="what makes a sound", documents=documents).json()
        order = [item["index"] for item in ranks["results"]]
        assert order == sorted(range(3), key=lambda index: -scores[index])
        assert [item["document"]["text"] for item in ranks["results"]] == [TEXTS[index] for index in order]
        assert ranks["usage"]["total_tokens"] == answer["usage"]["total_tokens"]
    best = post(server, "/rerank", query="what makes a sound", documents=TEXTS, top_n=1, return_documents=False).json()
    assert [sorted(item) for item in best["results"]] == [["index", "relevance_score"]]


def test_a_late_score_is_the_sum_of_best_matches(serve: Serve) -> None:
    server = serve("colbert")
    vectors = post(server, "/pooling", input=["a cat", TEXTS[1]]).json()["data"]
    query, document = (np.array(item["data"]) for item in vectors)
    answer = post(server, "/score", text_1="a cat", text_2=TEXTS[1]).json()
    assert answer["data"][0]["score"] == pytest.approx((query @ document.T).max(1).sum(), abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/score", {"text_1": "a"}, "Give two sides to compare"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "cat"]}, "Give one text to compare with all others"),
        ("/score", {"text_1": [], "text_2": "b"}, "There are no texts to compare"),
        ("/score", {"text_1": "a", "text_2": {"content": [{"type": "image_url"}]}}, "text_2 contains something other"),
        ("/score", {"text_1": "a", "text_2": "b", "instruction": "x"}, "instruction: instructions are not supported"),
        ("/rerank", {"query": "a", "documents": []}, "There are no texts to compare"),
        ("/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 3}, "truncate_prompt_tokens is 3"),
    ],
)
def test_what_cannot_be_compared_is_refused(path: str, body: dict[str, Any], sentence: str, serve: Serve) -> None:
    assert error_of(post(serve("cross-encoder"), path, **body)).startswith(sentence)


def test_a_query_is_tokenised_once_for_all_documents(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("cross-encoder")
    seen: list[str] = []
    bare = scoring.bare_text

    def noted(tokenizer: Tokenizer, text: str, **limits: Any) -> BareText:
        seen.append(text)
        return bare(tokenizer, text, **limits)

    monkeypatch.setattr(scoring, "bare_text", noted)
    assert len(post(server, "/rerank", query="a cat", documents=TEXTS * 5).json()["results"]) == 15
    assert seen == ["a cat"]
    monkeypatch.setattr(scoring, "MAX_PAIR_TOKENS", 50)
    assert "at most 50 tokens in all" in error_of(post(server, "/rerank", query="a cat", documents=TEXTS * 5))


def test_coheres_embeddings(serve: Serve) -> None:
    server = serve("embed")
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = post(server, "/v2/embed", model="tiny", texts=TEXTS, embedding_types=kinds, input_type="search_query")
    body = answer.json()
    floats = np.array(body["embeddings"]["float"], np.float32)
    assert np.allclose(floats, embed(server, TEXTS), atol=1e-6)
    assert base64.b64decode(body["embeddings"]["base64"][0]) == floats[0].tobytes()
    assert np.array(body["embeddings"]["ubinary"]).shape == (3, HIDDEN // 8)
    assert (np.array(body["embeddings"]["binary"]) + 128).tolist() == body["embeddings"]["ubinary"]
    assert body["meta"]["billed_units"]["input_tokens"] == 14
    long = post(server, "/v2/embed", texts=["cat " * 100], truncate="NONE")
    assert "The input has 102 tokens" in error_of(long)
    assert post(server, "/v2/embed", texts=["cat " * 100]).status_code == 200


_TORCH_TYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@given(
    dtype=st.sampled_from(sorted(_TORCH_TYPES)),
    vector=arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-400, 400, width=32)),
)
def test_small_types_are_rounded_as_torch_rounds(dtype: EmbedDType, vector: np.ndarray) -> None:
    wanted = torch.tensor(vector).to(_TORCH_TYPES[dtype])
    found = torch.frombuffer(bytearray(to_bytes(vector, dtype, "native")), dtype=_TORCH_TYPES[dtype])
    assert torch.equal(found.float(), wanted.float())


def test_values_beyond_a_small_type_become_its_largest() -> None:
    found = to_bytes(np.array([1e6, -1e6], np.float32), "fp8_e4m3", "native")
    assert torch.frombuffer(bytearray(found), dtype=torch.float8_e4m3fn).float().tolist() == [448.0, -448.0]
    assert pack_bits(np.array([1, -1, 1, 1, -1, -1, -1, -1], np.float32), is_signed=False) == [0b10110000]
