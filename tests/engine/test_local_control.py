"""The offline face sleeps, wakes up and takes new weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def text(llm: LLM) -> str:
    return llm.generate("tea", GREEDY, use_tqdm=False)[0].outputs[0].text


def test_sleep_and_new_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (tmp_path / "updates" / "new").mkdir(parents=True)
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(5)
    changed = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in weights.items()}
    save_file(changed, tmp_path / "updates" / "new" / "model.safetensors")
    llm = LLM(str(folder), weight_update_dir=str(tmp_path / "updates"), **SETTINGS)
    expected = text(llm)
    for level in (0, 1, 2):
        llm.sleep(level)
        with pytest.raises(InvalidRequestError, match="wake_up"):
            text(llm)
        llm.wake_up()
        assert text(llm) == expected
    assert llm.reset_prefix_cache() is True
    llm.update_weights("new", "v2")
    assert text(llm) != expected and llm.get_weight_version() == "v2"
    with pytest.raises(InvalidRequestError, match="no folder"):
        llm.update_weights("missing", "v3")
    assert llm.get_weight_version() == "v2"
    llm.update_weights()
    assert text(llm) == expected
    with pytest.raises(InvalidRequestError, match="profiler-config"):
        llm.start_profile()
    llm.shutdown()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_weights_take_the_place_of_the_old(tmp_path: Path, dtype: str) -> None:
    """Captured steps stay valid, and no second model needs memory."""
    folder = write_model(tmp_path / "model")
    (tmp_path / "updates" / "new").mkdir(parents=True)
    weights = load_file(folder / "model.safetensors")
    save_file({name: -tensor for name, tensor in weights.items()}, tmp_path / "updates" / "new" / "model.safetensors")
    llm = LLM(str(folder), weight_update_dir=str(tmp_path / "updates"), **(SETTINGS | {"dtype": dtype}))
    expected = text(llm)
    (model,) = llm.apply_model(lambda model: model)
    (runner,) = llm.collective_rpc(lambda worker: worker._runner)
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters() if parameter.numel()}
    llm.update_weights("new")
    assert text(llm) != expected
    assert llm.apply_model(lambda model: model) == [model]
    assert llm.collective_rpc(lambda worker: worker._runner) == [runner]
    for name, place in places.items():
        assert model.get_parameter(name).data_ptr() == place, name
    llm.update_weights()
    assert text(llm) == expected
    llm.shutdown()


def test_a_step_that_is_left_over_does_not_keep_it_awake(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path / "model")), async_scheduling=True, **SETTINGS)
    expected = llm.generate("tea", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    stopped = GREEDY.clone()
    stopped.stop_token_ids = [expected[4]]
    for level in (1, 0):
        (output,) = llm.generate("tea", stopped, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == list(expected[: list(expected).index(expected[4]) + 1])
        assert not llm._engine.is_quiet, "a step was begun before the last token was known"
        llm.sleep(level)
        llm.wake_up()
    llm.shutdown()
