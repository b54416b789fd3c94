"""Scripts in the style of vLLM's own offline examples. Each takes a model's folder as its first argument."""

HEAD = """
import sys
MODEL = sys.argv[1]
SMALL = dict(device="cpu", dtype="float32", max_model_len=256, num_gpu_blocks_override=513, block_size=4,
             max_num_seqs=16, num_threads=1, use_tqdm_on_load=False, generation_config="vllm")
"""

BASIC = (
    HEAD
    + """
from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is", "The future of AI is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=8, ignore_eos=True)


def main():
    llm = LLM(model=MODEL, **SMALL)
    outputs = llm.generate(prompts, sampling_params, use_tqdm=False)
    for output in outputs:
        print(repr(output.prompt), len(output.outputs[0].token_ids), output.outputs[0].finish_reason)
    print(llm.llm_engine.model_config.max_model_len, llm.generate([], sampling_params))
    (chosen,) = llm.generate("Hello", SamplingParams(temperature=0, logprobs=2, prompt_logprobs=1), use_tqdm=False)
    print(len(chosen.outputs[0].logprobs), chosen.prompt_logprobs[0], chosen.lora_request, chosen.encoder_prompt)


if __name__ == "__main__":
    main()
"""
)

CHAT = (
    HEAD
    + """
from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
EngineArgs.add_cli_args(parser)
parser.set_defaults(model=MODEL)
parser.add_argument("--temperature", type=float)
args = vars(parser.parse_args(sys.argv[2:]))
temperature = args.pop("temperature")
llm = LLM(**args)
sampling_params = llm.get_default_sampling_params()
sampling_params.temperature = temperature
sampling_params.max_tokens = 5
sampling_params.ignore_eos = True
conversation = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
outputs = llm.chat([conversation, conversation], sampling_params=sampling_params, use_tqdm=False)
print(outputs[0].prompt, [len(output.outputs[0].token_ids) for output in outputs])
print(llm.preprocess_chat(conversation, add_generation_prompt=False)[0]["prompt"])
print(llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)
"""
)

ENGINE = (
    HEAD
    + """
import argparse
from vllm import EngineArgs, LLMEngine, PoolingParams, RequestOutput, SamplingParams


def process_requests(engine: LLMEngine, prompts):
    request_id = 0
    while prompts or engine.has_unfinished_requests():
        if prompts:
            engine.add_request(str(request_id), *prompts.pop(0))
            request_id += 1
        request_outputs: list[RequestOutput] = engine.step()
        for request_output in request_outputs:
            if request_output.finished:
                print(request_output.request_id, [len(text.token_ids) for text in request_output.outputs])


engine = LLMEngine.from_engine_args(EngineArgs(model=MODEL, **SMALL))
process_requests(
    engine,
    [
        ("A robot may not injure a human being", SamplingParams(temperature=0.0, logprobs=1, max_tokens=4)),
        ("To be or not to be,", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2, max_tokens=3, seed=1)),
        ("What is life?", SamplingParams(n=2, temperature=0.8, top_p=0.95, max_tokens=9, seed=5, ignore_eos=True)),
    ],
)
engine.add_request("gone", "tea", SamplingParams(max_tokens=50, ignore_eos=True))
engine.step()
engine.reset_prefix_cache(reset_running_requests=True)
engine.abort_request(["gone"])
print(engine.get_num_unfinished_requests(), engine.get_supported_tasks(), engine.get_tokenizer().eos_token_id)
"""
)

STREAM = (
    HEAD
    + """
import asyncio
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> None:
    sampling_params = SamplingParams(max_tokens=6, seed=42, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    num_tokens = 0
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        for completion in output.outputs:
            num_tokens += len(completion.token_ids)
        if output.finished:
            print(request_id, num_tokens)
            break


async def main():
    engine_args = AsyncEngineArgs(
        model=MODEL, **SMALL, allowed_functions=["os:getpid"],
        logits_processors=["processors:Fixed"] if len(sys.argv) > 2 else None,
    )
    engine = AsyncLLM.from_engine_args(engine_args)
    try:
        for i, prompt in enumerate(["The future is", "In a galaxy"], 1):
            await stream_response(engine, prompt, f"stream-{i}")
        async for last in engine.generate("a", SamplingParams(max_tokens=3, extra_args={"target_token": 65}), "x"):
            pass
        print(repr(last.outputs[0].text))
        await engine.check_health()
        print(engine.model_config.max_model_len, engine.get_tokenizer().eos_token_id, engine.errored)
    finally:
        engine.shutdown()
    print(engine.errored)


if __name__ == "__main__":
    asyncio.run(main())
"""
)

PROCESSORS = '''
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    RequestLogitsProcessor,
)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class Fixed(LogitsProcessor):
    @classmethod
    def validate_params(cls, params: SamplingParams):
        target = params.extra_args and params.extra_args.get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token value {target} {type(target)} is not int")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.size = vllm_config.model_config.get_vocab_size(), vllm_config.scheduler_config.max_num_seqs
        self.req_info: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None):
        process_dict_updates(
            self.req_info,
            batch_update,
            lambda params, _, __: params.extra_args and params.extra_args.get("target_token"),
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.req_info:
            return logits
        assert logits.shape[1] == self.size[0] and len(logits) <= self.size[1]
        rows = torch.tensor(list(self.req_info), dtype=torch.long)
        cols = torch.tensor(list(self.req_info.values()), dtype=torch.long)
        kept = logits[rows, cols].clone()
        logits[rows] = float("-inf")
        logits[rows, cols] = kept
        return logits


class PerRequest:
    def __init__(self, target: int) -> None:
        self.target = target

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        kept = logits[self.target].item()
        logits[:] = float("-inf")
        logits[self.target] = kept
        return logits


class Wrapped(AdapterLogitsProcessor):
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        super().__init__(vllm_config, device, is_pin_memory)
        self.is_cuda = device.type == "cuda"

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        target = params.extra_args and params.extra_args.get("other_token")
        return None if target is None else PerRequest(target)


class Duck:
    """Not a subclass of anything."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.rows = 0

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        self.rows = batch_update.batch_size if batch_update else self.rows

    def apply(self, logits):
        assert len(logits) == self.rows
        return logits
'''

LOGITS = (
    HEAD
    + """
sys.path.insert(0, sys.argv[2])
from processors import Duck, Fixed, Wrapped
from vllm import LLM, SamplingParams

params = [
    SamplingParams(temperature=0.0, max_tokens=4, extra_args={"target_token": 65}),
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=4, extra_args={"other_token": 66}),
]
llm = LLM(model=MODEL, logits_processors=[Fixed, Wrapped, Duck], **SMALL)
for output in llm.generate(["one", "two", "three"], params, use_tqdm=False):
    print(list(output.outputs[0].token_ids))
try:
    llm.generate("one", SamplingParams(extra_args={"target_token": "A"}), use_tqdm=False)
except ValueError as error:
    print(error)
"""
)

METRICS = (
    HEAD
    + """
from vllm import LLM, SamplingParams
from vllm.v1.metrics.reader import Counter, Gauge, Histogram, Vector

llm = LLM(model=MODEL, disable_log_stats=False, **SMALL)
llm.generate(["Hello, my name is", "The capital"], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
for metric in llm.get_metrics():
    if isinstance(metric, Gauge):
        if metric.name == "vllm:num_requests_running":
            print(metric.name, "gauge", metric.value)
    elif isinstance(metric, Counter):
        if metric.name == "vllm:generation_tokens":
            print(metric.name, "counter", metric.value)
    elif isinstance(metric, Vector):
        print(metric.values)
    elif isinstance(metric, Histogram):
        if metric.name == "vllm:e2e_request_latency_seconds":
            print(metric.name, "histogram", metric.count, metric.buckets["+Inf"], metric.sum > 0)
"""
)

EMBED = (
    HEAD
    + """
from argparse import Namespace
from vllm import LLM, EngineArgs
from vllm.config import PoolerConfig

llm = LLM(
    model=MODEL, runner="pooling", convert="embed",
    pooler_config=PoolerConfig(seq_pooling_type="MEAN"), **SMALL,
)
outputs = llm.embed(["Hello, my name is", "The capital of France is"], use_tqdm=False, lora_request=None)
for output in outputs:
    print(len(output.outputs.embedding))
"""
)

BEAMS = (
    HEAD
    + """
from vllm import LLM
from vllm.sampling_params import BeamSearchParams, GuidedDecodingParams, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest

llm = LLM(model=MODEL, **SMALL)
(found,) = llm.beam_search([{"prompt": "a"}], BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True))
print(len(found.sequences), found.sequences[0].lora_request)
params = SamplingParams(structured_outputs=GuidedDecodingParams(choice=["yes", "no"]), seed=1, max_tokens=8)
(answer,) = llm.generate([TokensPrompt(prompt_token_ids=[65, 66])], params, use_tqdm=False)
print(answer.outputs[0].text in ("yes", "no"))
for arguments in (
    dict(lora_request=LoRARequest("sql", 1, "/nowhere")),
    dict(mm_processor_kwargs={"num_crops": 4}),
    dict(tokenization_kwargs={"padding": True}),
):
    try:
        llm.generate("a", params, use_tqdm=False, **arguments)
    except ValueError as error:
        print(error)
print(llm.collective_rpc("get_model")[0] is llm.apply_model(lambda model: model)[0])
print(llm.collective_rpc(lambda worker, scale: worker.rank * scale, args=(3,)))
"""
)

PARALLEL = (
    HEAD
    + """
from multiprocessing import get_context


def work(rank, queue):
    from vllm import LLM, SamplingParams

    llm = LLM(model=MODEL, **SMALL)
    (output,) = llm.generate("Hi", SamplingParams(max_tokens=3 + rank, ignore_eos=True), use_tqdm=False)
    queue.put((rank, len(output.outputs[0].token_ids)))


if __name__ == "__main__":
    context = get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=work, args=(rank, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    print(sorted(queue.get(timeout=200) for _ in processes))
    for process in processes:
        process.join()
"""
)
