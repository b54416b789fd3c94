"""Workers that Ray places, on a cluster of two nodes; skipped without the extra ``ray``."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoints import Checkpoint

sys.path.append(str(Path(__file__).parents[1]))

from octavo import LLM, SamplingParams
from octavo.errors import EngineDeadError, InvalidRequestError

ray = pytest.importorskip("ray", reason="needs the extra 'ray': pip install 'octavo[ray]'")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="runs on a machine without a GPU: its nodes have cores only"
)

PROMPTS: list[Any] = [{"prompt_token_ids": [5, 6, 7, 8, 9]}, {"prompt_token_ids": list(range(20, 90))}]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two node processes, each with room for one worker."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False)
    yield
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.usefixtures("cluster")
def test_actors_compute_their_parts(checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]) -> None:
    source = checkpoint("qwen3")
    one = start(source)
    two = start(source, tensor_parallel_size=2, distributed_executor_backend="ray")
    expected, found = ([answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, GREEDY)] for llm in (one, two))
    assert found == expected
    head, actor = two.collective_rpc("weight_checksums")
    assert head.keys() == actor.keys() and head != actor
    with pytest.raises(InvalidRequestError, match="no function reaches"):
        two.apply_model(lambda model: None)
    two.sleep(2)
    two.wake_up()
    assert [answer.outputs[0].token_ids for answer in two.generate(PROMPTS, GREEDY)] == expected


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_dies_ends_the_engine(checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM]) -> None:
    llm = start(checkpoint("qwen3"), tensor_parallel_size=2, distributed_executor_backend="ray")
    (peer,) = llm._engine.executor._peers  # type: ignore[attr-defined]
    ray.kill(peer._actor)
    with pytest.raises(EngineDeadError, match="worker of rank 1"):
        llm.generate(PROMPTS, GREEDY)
