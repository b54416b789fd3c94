"""Times an indexer's choice of tokens, attention over them, and attention over all, at DeepSeek V3.2's sizes.

    python benchmarks/sparse_attention.py --rows 1 32 --contexts 8192 32768 131072 --chunk 2048

prints microseconds of a layer in bfloat16: first for rows that decode, then for a chunk of one prompt at the end of a
context.
"""

import argparse

import torch

from octavo.bench.kernels_case import median, time_run
from octavo.kernels import (
    AttentionInputs,
    DeviceRows,
    LatentSpec,
    StepShape,
    bind_kernels,
    choose_tokens,
    latent_attention,
)
from octavo.platforms import runtime_of, select_platform

RANK, ROPE_DIM = 512, 64
INDEX_HEADS, INDEX_DIM = 64, 128


def inputs_of(num_rows: int, query_len: int, context: int, block_size: int, device: torch.device) -> AttentionInputs:
    """Rows of equal lengths, each in blocks of its own."""
    blocks_each, is_decode = -(-context // block_size), query_len == 1

    def indices(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    num_tokens = num_rows * query_len
    tables = torch.arange(num_rows * blocks_each, dtype=torch.int32, device=device).view(num_rows, -1)
    rows = DeviceRows(
        indices([num_rows, num_rows if is_decode else 0, num_tokens, context, num_rows]),
        indices(list(range(0, num_tokens + 1, query_len))),
        indices([context] * num_rows),
    )
    shape = StepShape(num_rows, num_tokens, query_len, is_decode, not is_decode, False)
    mapping = torch.full((num_tokens,), -1, device=device)
    return AttentionInputs(
        tables, torch.arange(num_rows, device=device).int(), mapping, block_size, 1, 0, None, rows, shape
    )


def measure(num_rows: int, query_len: int, context: int, num_heads: int, num_chosen: int) -> None:
    """Print a line of one step."""
    platform = select_platform("auto")
    device, runtime = platform.device, runtime_of(platform.device)
    dtype = torch.bfloat16
    inputs, index_inputs = (inputs_of(num_rows, query_len, context, size, device) for size in (16, 64))
    num_tokens = num_rows * query_len

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def cache(of: AttentionInputs, size: int) -> torch.Tensor:
        return random(of.block_tables.numel(), of.block_size, size)

    keys, vectors = cache(index_inputs, INDEX_DIM), cache(inputs, RANK + ROPE_DIM)
    index_q, q = random(num_tokens, INDEX_HEADS, INDEX_DIM), random(num_tokens, num_heads, RANK + ROPE_DIM)
    weights = torch.randn(num_tokens, INDEX_HEADS, device=device)
    spec = LatentSpec(num_heads, RANK, ROPE_DIM, (RANK + ROPE_DIM) ** -0.5)
    chosen = choose_tokens(index_q, weights, keys, index_inputs, num_chosen)
    runs = {
        "choice": lambda copy: choose_tokens(index_q, weights, keys, index_inputs, num_chosen),
        "attention to chosen": lambda copy: latent_attention(q, vectors, inputs, spec, None, None, chosen),
        "to all": lambda copy: latent_attention(q, vectors, inputs, spec),
    }
    times = {name: median(time_run(run, 1, runtime)) * 1e6 for name, run in runs.items()}
    print(f"{num_rows} x {query_len} tokens of {context}:", *(f"{name} {time:.1f}" for name, time in times.items()))


def main() -> None:
    """Measure all steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--contexts", type=int, nargs="*", default=[8192, 32768, 131072])
    parser.add_argument("--chunk", type=int, default=2048, help="tokens of a prompt; 0 for none")
    parser.add_argument("--heads", type=int, default=16, help="128, divided by the number of devices")
    parser.add_argument("--chosen", type=int, default=2048)
    options = parser.parse_args()
    bind_kernels(select_platform("auto"))
    for context in options.contexts:
        for num_rows in options.rows:
            measure(num_rows, 1, context, options.heads, options.chosen)
        if options.chunk:
            measure(1, options.chunk, context, options.heads, options.chosen)


if __name__ == "__main__":
    main()
