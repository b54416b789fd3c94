"""Scheduler and runner over a tiny model with random weights."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from octavo.execution.build import Runner, build_runner
from octavo.execution.results import HeldStep
from octavo.hub.families.deepseek import DeepseekFields, IndexerFields
from octavo.hub.families.experts import ExpertFields
from octavo.hub.families.gemma import GemmaFields
from octavo.hub.families.gpt_oss import GptOssFields
from octavo.hub.families.llama import LlamaFields
from octavo.hub.families.mamba2 import Mamba2Fields
from octavo.hub.families.sparse import SparseFields
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots, finish
from octavo.models.base import CausalLM, cache_specs
from octavo.models.registry import build_model
from octavo.planning.groups import make_groups
from octavo.platforms import select_platform
from octavo.quantization.cache_format import CacheFormat
from octavo.records import EngineOutput, EngineRequest, Plan, Step, StepResult
from octavo.records.experts import ExpertSpec, Routing, StackedExperts
from octavo.sampling.rules import TokenRule
from octavo.sampling.token_masks import fill_masks
from octavo.scheduling import Scheduler

VOCAB = 64
MAX_LEN = 64


def tiny_config(architecture: str, layer_types: tuple[LayerType, ...], window: int | None) -> ModelConfig:
    """A model of hidden size 32 with four heads, and two key/value heads where there are such."""
    is_gemma = architecture.startswith("Gemma")
    return ModelConfig(
        architecture=architecture,
        model_type="tiny",
        hidden_size=32,
        num_layers=len(layer_types),
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_LEN,
        rms_norm_eps=1e-6,
        rope=RopeConfig(10_000.0),
        layer_types=layer_types,
        sliding_window=window,
        tie_word_embeddings=False,
        hidden_act="gelu_pytorch_tanh" if is_gemma else "silu",
        dtype="float32",
        eos_token_ids=(),
        own=_OWN.get(architecture, LlamaFields()),
    )


_OWN: dict[str, object] = {
    "Gemma3ForCausalLM": GemmaFields(
        False, 8, has_post_norms=True, has_head_norms=True, local_rope=RopeConfig(1_000.0)
    ),
    "Mamba2ForCausalLM": Mamba2Fields(2, 8, 4, (0.0, math.inf), False, True),
    "Qwen3MoeForCausalLM": SparseFields(
        ExpertFields(Routing(4, 2, renormalises=True), size=16, is_sparse=(True,) * 4), query_norms="heads"
    ),
    "GptOssForCausalLM": GptOssFields(
        ExpertFields(
            Routing(4, 2, renormalises=True),
            size=16,
            is_sparse=(True,) * 4,
            storage=StackedExperts(is_interleaved=True),
            spec=ExpertSpec("clamped_swiglu", 1.7, 7.0),
            has_bias=True,
        ),
        attention_bias=True,
    ),
    "DeepseekV2ForCausalLM": DeepseekFields(
        experts=ExpertFields(Routing(4, 2), size=16, is_sparse=(False, True, True, True), shared_size=16),
        q_lora_rank=12,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        v_head_dim=8,
        score_scale=0.25,
        rope_interleave=True,
        attention_bias=False,
    ),
}
_OWN["DeepseekV32ForCausalLM"] = replace(
    _OWN["DeepseekV2ForCausalLM"],  # type: ignore[type-var]
    indexer=IndexerFields(5, 6, 12, 1e-6, rope_interleave=False, rotates_last=False, is_own=(True, False, True, True)),
)


def tiny_model(config: ModelConfig, poisoned_token: int | None = None, cache: CacheFormat | None = None) -> CausalLM:
    """Random weights; the embedding of ``poisoned_token`` is not a number."""
    random = torch.Generator().manual_seed(0)
    model = build_model(config, Build(cache=cache or CacheFormat()), MAX_LEN)
    for name, (slot,) in collect_slots(model).items():
        if slot.alternatives:  # a scale of keys or values, whose largest are about 5
            slot.fill(torch.full(slot.source_shapes[0], 5 / 448))
            continue
        values = torch.randn(slot.view.shape, generator=random)
        slot.fill(1 + 0.1 * values if "norm" in name else values / slot.view.shape[-1] ** 0.5)
        if "embed" in name and poisoned_token is not None:
            slot.view[poisoned_token] = torch.nan
    finish(model)
    return model


class TinyEngine:
    """The step loop of an engine."""

    def __init__(self, config: ModelConfig, model: CausalLM, **settings: object) -> None:
        plan = Plan(
            dtype="float32",
            max_model_len=MAX_LEN,
            block_size=4,
            num_blocks=400,
            block_bytes=0,
            groups=(),
            max_num_seqs=8,
            max_num_batched_tokens=256,
            enable_prefix_caching=True,
            enable_chunked_prefill=True,
            scheduling_policy="fcfs",
            num_steps_ahead=0,
        )
        plan = replace(plan, **settings)  # type: ignore[arg-type]
        groups, block_bytes = make_groups(
            cache_specs(model), plan.block_size, MAX_LEN, plan.num_places, 16 if plan.enable_prefix_caching else None
        )
        decode_len = plan.decode_len if "decode_len" in settings else plan.num_places
        self.plan = replace(plan, groups=groups, block_bytes=block_bytes, decode_len=decode_len)
        self.scheduler = Scheduler(self.plan)
        self.runner = self.make_runner(config, model)

    def make_runner(self, config: ModelConfig, model: CausalLM) -> Runner:
        """The runner of a CPU."""
        platform = select_platform("cpu")
        return build_runner(model, config, self.plan, platform, deterministic=False)

    def run(
        self, requests: list[EngineRequest], rules: Mapping[str, Sequence[TokenRule]] | None = None
    ) -> dict[str, list[EngineOutput]]:
        """All outputs by request, in order; some requests may have rules."""
        outputs: dict[str, list[EngineOutput]] = {request.request_id: [] for request in requests}
        for request in requests:
            self.scheduler.add_request(request, (rules or {}).get(request.request_id, ()))
        results: deque[StepResult] = deque()
        while self.scheduler.has_unfinished or results:
            held: tuple[Step, HeldStep] | None = None
            while held is None and len(results) <= self.plan.num_steps_ahead:
                step = self.scheduler.schedule()
                if step is None:
                    break
                started = self.runner.execute(step)
                if isinstance(started, HeldStep):
                    held = step, started
                else:
                    results.append(started.result())
            for _ in range(len(results) if held is not None else 1):
                for output in self.scheduler.update(results.popleft()):
                    outputs[output.request_id].append(output)
            if held is not None:
                step, started = held
                results.append(started.draw(fill_masks(self.scheduler.bound_rows(step), VOCAB // 32)).result())
        assert self.scheduler.cache.pool.num_free == self.plan.num_blocks - 1
        return outputs


def tokens(outputs: list[EngineOutput]) -> list[int]:
    """Generated tokens of one request."""
    return [token for output in outputs for token in output.new_token_ids]
