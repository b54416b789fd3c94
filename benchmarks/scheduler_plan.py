"""The plan of a scheduler that benchmarks drive without a model."""

from octavo.records import CacheGroup, Full, Plan


def scheduler_plan(
    max_model_len: int, block_size: int, num_blocks: int, *, max_num_seqs: int, num_steps_ahead: int
) -> Plan:
    """One group of full attention, and steps of up to 8,192 tokens."""
    return Plan(
        dtype="bfloat16",
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        block_bytes=4,
        groups=(CacheGroup(("layer",), Full(1, 1, "float32"), block_size),),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        scheduling_policy="fcfs",
        num_steps_ahead=num_steps_ahead,
    )
