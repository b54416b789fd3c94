"""The engines that ``cpu_peers.py`` compares, each behind one function: token ids in, greedy token ids out.

Imports are inside the loaders: each runs in a process, and perhaps an interpreter, that has its own engine only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

MAX_BATCH = 16
MAX_LENGTH = 768
"""Tokens of a prompt and its answer together."""
_CHUNK = 512
"""Tokens that llama.cpp computes at once."""

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], list[list[int]]]
"""Generates so many tokens for each prompt, and returns them."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker loads.

    Attributes:
        engine: a key of :data:`LOADERS`.
        path: a GGUF file or a folder with safetensors.
        setting: what the engine is run with where several settings are tried; see the loaders.
        num_threads: threads of the engine.
        cache_tokens: tokens that all requests of a workload hold at once.
        cache_bytes_per_token: of keys and values of two bytes.
    """

    engine: str
    path: str
    setting: str
    num_threads: int
    cache_tokens: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded engine.

    Attributes:
        version: of its package.
        cache_bytes: resident memory of the key/value cache that outlives a call of ``generate``.
    """

    generate: Generate
    version: str
    cache_bytes: int


def load_octavo(job: Job) -> Engine:
    """Octavo in this process; the setting is the ``quantization`` to load with, or empty."""
    import octavo
    from octavo import LLM, PromptType, SamplingParams

    # A cache that the workload fills: what is allocated is then resident.
    cache_bytes = job.cache_tokens * job.cache_bytes_per_token
    settings: dict[str, Any] = {"quantization": job.setting} if job.setting else {}
    model = LLM(
        job.path,
        dtype="bfloat16",
        enable_prefix_caching=False,
        num_threads=job.num_threads,
        max_num_seqs=MAX_BATCH,
        max_model_len=MAX_LENGTH,
        kv_cache_memory_bytes=cache_bytes,
        log_level="warning",
        **settings,
    )

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
        inputs: list[PromptType] = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(output.outputs[0].token_ids) for output in model.generate(inputs, params, use_tqdm=False)]

    return Engine(generate, octavo.__version__, cache_bytes)


def load_huggingface(job: Job) -> Engine:
    """``generate`` of transformers; the setting is the data type. Its cache lives as long as a call."""
    import torch
    import transformers

    torch.set_num_threads(job.num_threads)
    transformers.AutoTokenizer.from_pretrained(job.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(job.path, dtype=getattr(torch, job.setting)).eval()
    # No token ends a text, so that all engines generate the same number.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=output_len, do_sample=False, use_cache=True
            )
        chosen: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return chosen

    return Engine(generate, transformers.__version__, 0)


def load_llama_cpp(job: Job) -> Engine:
    """llama.cpp through llama-cpp-python's bindings of its C interface; the setting turns flash attention on or off."""
    # By name, as type checkers run where the package is not installed.
    llama_cpp: Any = import_module("llama_cpp")
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(job.path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {job.path}.")
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = MAX_BATCH
    params.n_ctx = MAX_BATCH * MAX_LENGTH
    params.n_batch = params.n_ubatch = _CHUNK
    params.n_threads = params.n_threads_batch = job.num_threads
    params.flash_attn_type = {
        "flash": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "plain": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }[job.setting]
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp cannot create a context.")
    decoder = _LlamaDecoder(llama_cpp, model, context)
    # Each sequence has a cache of its own, cleared when it is allocated and so resident.
    cache_bytes = llama_cpp.llama_n_ctx(context) * job.cache_bytes_per_token

    def generate(prompts: Prompts, output_len: int) -> list[list[int]]:
        decoder.clear()
        tokens = decoder.decode(prompts, [0] * len(prompts))
        answers = [[token] for token in tokens]
        for step in range(output_len - 1):
            tokens = decoder.decode([[token] for token in tokens], [len(prompt) + step for prompt in prompts])
            for answer, token in zip(answers, tokens, strict=True):
                answer.append(token)
        return answers

    return Engine(generate, llama_cpp.__version__, cache_bytes)


class _LlamaDecoder:
    """One context of llama.cpp, with a batch that is filled again for each step."""

    def __init__(self, library: Any, model: Any, context: Any) -> None:
        self._library = library
        self._context = context
        self._vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        self._batch = library.llama_batch_init(_CHUNK, 0, 1)

    def clear(self) -> None:
        """Forget all sequences."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), False)

    def decode(self, sequences: Prompts, starts: list[int]) -> list[int]:
        """Append tokens to each sequence, from a position on; returns the likeliest next token of each."""
        rows = [
            (token, start + offset, number, offset == len(tokens) - 1)
            for number, (tokens, start) in enumerate(zip(sequences, starts, strict=True))
            for offset, token in enumerate(tokens)
        ]
        chosen: list[int] = []
        for first in range(0, len(rows), _CHUNK):
            chosen += self._decode_chunk(rows[first : first + _CHUNK])
        return chosen

    def _decode_chunk(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, is_last) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = is_last
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode ended with status {status}.")
        return [self._likeliest(index) for index, row in enumerate(rows) if row[3]]

    def _likeliest(self, index: int) -> int:
        import numpy as np

        logits = self._library.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


LOADERS: dict[str, Callable[[Job], Engine]] = {
    "octavo": load_octavo,
    "llama.cpp": load_llama_cpp,
    "huggingface": load_huggingface,
}
