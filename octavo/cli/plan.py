"""``octavo plan``: what would be decided for a model, before anything is loaded."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from octavo.cli.flags import ALL_SECTIONS, add_setting_flags, engine_config, given_settings, server_settings
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count
from octavo.config import EngineConfig, ServerSettings
from octavo.errors import ConfigError, OctavoError
from octavo.hub import ModelConfig, ModelSource
from octavo.records import Plan


def run(arguments: Sequence[str]) -> int:
    """Print the plan; returns the exit status.

    Raises:
        OctavoError: a flag, the model or its fit to this machine is wrong: whatever ``octavo serve`` would reject.
    """
    parser = Parser(
        "octavo plan",
        "Show what would be decided for a model, and why, without loading its weights: memory, cache, settings, "
        "and the speed that memory bandwidth allows.",
        "MODEL",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--device-memory",
        type=parse_count,
        metavar="BYTES",
        help="plan for a GPU with so much memory, which need not be here; takes suffixes: 141GB",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="plan for a GPU that need not be here: a100, b200, h100, h200, l4, l40s or rtx4090",
    )
    add_setting_flags(parser, ALL_SECTIONS)
    given = parser.parse(arguments)
    values = given_settings(given, ALL_SECTIONS)
    config = engine_config(values)
    planned = make(config, given.device_memory, server_settings(values), given.gpu)
    if given.json:
        refusal = None if planned.refusal is None else str(planned.refusal)
        facts = {"model": config.model.model, "device": planned.device, "refusal": refusal, **asdict(planned.plan)}
        print(json.dumps(facts, indent=2))
    else:
        print(report(config.model.model, planned.device, planned.plan))
    if planned.refusal is not None:
        sys.stdout.flush()
        raise planned.refusal
    return 0


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan.

    Attributes:
        device: a description.
        refusal: why the model cannot be served all the same; None if it can.
    """

    device: str
    plan: Plan
    refusal: OctavoError | None


def make(
    config: EngineConfig,
    device_memory: int | None = None,
    server: ServerSettings | None = None,
    gpu: str | None = None,
) -> Planned:
    """The plan for a device, and whether the model's files do for it.

    Args:
        device_memory: bytes of a GPU to plan for instead of this machine's device.
        server: the server's settings; None for the defaults.
        gpu: the kind of that GPU, a name in :data:`octavo.platforms.GPU_MODELS`, with its usual memory by default.

    Raises:
        OctavoError: the model or a setting is wrong.
    """
    from octavo.hub import find_model
    from octavo.planning import make_plan
    from octavo.platforms import GPU_MODELS, ImaginedGpu, select_platform

    if gpu is not None and gpu not in GPU_MODELS:
        raise ConfigError(f"--gpu is {gpu!r}; it is one of {', '.join(GPU_MODELS)}.")
    source, model_config = find_model(config)
    model = None if gpu is None else GPU_MODELS[gpu]
    num_bytes = model.num_bytes if model is not None and device_memory is None else device_memory
    platform = select_platform(config.device.device) if num_bytes is None else ImaginedGpu(num_bytes, model)
    with platform.prepare(config.device):
        plan = make_plan(config, model_config, platform, platform.read_bandwidth())
    refusal = None
    try:
        _check_named(config, server or ServerSettings())
        # For a machine that is not here the model's files need not be here, either: its shape is enough.
        has = {
            "has_float8": platform.has_float8(),
            "has_blocks": platform.has_blocks(),
            "has_groups": platform.has_groups(),
        }
        _check_files(config, source, model_config, plan, must_be_here=num_bytes is None, **has)
    except OctavoError as error:
        refusal = error
    return Planned(platform.describe(), plan, refusal)


def _check_named(config: EngineConfig, server: ServerSettings) -> None:
    """Look at what settings name besides the model: parsers, logits processors, a chat template."""
    from octavo.api.chat.formats import check_names
    from octavo.sampling.processors import processor_classes
    from octavo.tokenization.chat_template import compile_template
    from octavo.tokenization.load import read_chat_template

    check_names(config.model, server)
    processor_classes(config.model.logits_processors or [])
    if server.chat_template is not None:
        compile_template(read_chat_template(server.chat_template))


def _check_files(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    plan: Plan,
    *,
    must_be_here: bool,
    has_float8: bool,
    has_blocks: bool,
    has_groups: bool,
) -> None:
    """Look at all that a start would look at: kind, names and shapes of weights, tokenizer, chat template.

    Args:
        must_be_here: weights and tokenizer may not be missing.
        has_float8, has_blocks, has_groups: see :func:`resolve_quantization`.
    """
    import torch

    from octavo.inputs.frontend import TextFrontend
    from octavo.layers.build import Build
    from octavo.models.loading import check_format, check_weights
    from octavo.models.registry import build_model, build_pooled
    from octavo.parallel import TensorParallel
    from octavo.quantization.resolve import resolve_quantization

    load_format = config.load.load_format
    check_format(source, model_config, load_format)
    quantization = resolve_quantization(
        config, model_config, has_float8=has_float8, has_blocks=has_blocks, has_groups=has_groups
    )
    if not must_be_here and source.kind == "folder" and not any(source.path.glob("*.safetensors")):
        return
    with torch.device("meta"):
        build = build_model if model_config.pooling is None else build_pooled
        model = build(
            model_config,
            Build(quantization, tensor_parallel=TensorParallel(size=config.device.tensor_parallel_size)),
            plan.max_model_len,
        )
    check_weights(model, source, model_config, load_format)
    TextFrontend.load(config)


def report(model: str, device: str, plan: Plan) -> str:
    """A plan for people."""
    lines = [f"{model} on {device}", "", "Memory"]
    rows = [(part.name, format_size(part.num_bytes), part.reason) for part in plan.memory]
    rows.append(("together", format_size(sum(part.num_bytes for part in plan.memory)), ""))
    width = max(len(name) for name, _, _ in rows)
    lines += [f"  {name:<{width}}  {size:>10}  {reason}".rstrip() for name, size, reason in rows]
    lines += ["", "Weights", *_weight_lines(plan)] if plan.weights else []
    if plan.groups:
        sizes = " or ".join(map(str, sorted({group.block_size for group in plan.groups})))
        lines += ["", "Cache", f"  {plan.cache_tokens} tokens in {plan.num_blocks - 1} blocks of {sizes}"]
        num_longest = plan.cache_tokens / plan.max_model_len
        lines.append(f"  {num_longest:.1f} sequences of the greatest length, {plan.max_model_len} tokens")
    if plan.decode_limit:
        lines += ["", "Speed limit", f"  {plan.decode_limit:.0f} tokens/s for one request: reading the weights that a"]
        lines.append("  token needs takes the memory's whole bandwidth; batches share each reading")
    lines += ["", "Settings"]
    width = max((len(decision.name) for decision in plan.decisions), default=0)
    value_width = max((len(decision.value) for decision in plan.decisions), default=0)
    lines += [
        f"  {decision.name:<{width}}  {decision.value:<{value_width}}  {decision.reason}" for decision in plan.decisions
    ]
    return "\n".join(lines)


def _weight_lines(plan: Plan) -> Iterator[str]:
    """Each group of weights: what it takes, and how long a token reads it at the memory's bandwidth."""
    num_read = sum(group.num_read for group in plan.weights)
    purposes = max(len(group.purpose) for group in plan.weights)
    formats = max(len(group.format) for group in plan.weights)
    for group in plan.weights:
        size = f"{format_size(group.num_bytes):>10}"
        line = f"  {group.purpose:<{purposes}}  {group.format:<{formats}}  {size}"
        if plan.decode_limit:
            line += f"  {1e3 * group.num_read / num_read / plan.decode_limit:8.3f} ms a token"
        yield line


def format_size(num_bytes: int) -> str:
    """Bytes for people: ``1.50 GiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
