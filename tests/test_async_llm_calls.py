"""What :class:`octavo.AsyncLLM` takes besides requests: keywords, functions of the owner's, a quick end."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from running_llm import engine_processes, last, running
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.errors import ConfigError, EngineDeadError, InvalidRequestError

SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.long
def test_functions_run_beside_the_model_if_the_owner_allows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    allowed = [f"running_functions:{name}" for name in ("count", "fail", "model", "missing")]

    async def main() -> None:
        async with running(folder, allowed_functions=allowed) as llm:
            (count,) = await llm.collective_rpc(allowed[0])
            assert count > 1000
            assert await llm.collective_rpc(allowed[0], args=(3,)) == [3 * count]
            assert await llm.collective_rpc(allowed[0], kwargs={"factor": 2}, timeout=60) == [2 * count]
            for name, words in (
                ("os:getpid", "does not run 'os:getpid'"),
                ("get_model", "does not run 'get_model'"),
                (allowed[1], "RuntimeError: a bug"),
                (allowed[2], "failed: TypeError"),
                (allowed[3], "AttributeError"),
            ):
                with pytest.raises(InvalidRequestError, match=words):
                    await llm.collective_rpc(name)
            with pytest.raises(InvalidRequestError, match="name the function"):
                await llm.collective_rpc(len)  # type: ignore[arg-type]
            assert (await last(llm, "a", SHORT)).finished

    asyncio.run(main())


@pytest.mark.long
def test_keywords_a_late_start_and_a_quick_end(folder: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM(model=str(folder), log_level="warning", **SETTINGS)
        with pytest.raises(ConfigError, match="not started"):
            llm.get_tokenizer()
        # Both start it, once.
        outputs = await asyncio.gather(last(llm, "a", SHORT), last(llm, "b", SHORT))
        assert all(output.finished for output in outputs) and len(engine_processes()) == 1
        await llm.start()
        await llm.check_health()
        assert llm.get_tokenizer().eos_token_id == 257
        assert llm.model_config.max_model_len == 256 and llm.vllm_config.scheduler_config.max_num_seqs == 16
        llm.close()
        llm.close()
        with pytest.raises(EngineDeadError):
            await llm.check_health()
        with pytest.raises(EngineDeadError):
            await last(llm, "c", SHORT)

    asyncio.run(main())
    deadline = time.monotonic() + 180
    while engine_processes():
        assert time.monotonic() < deadline


def test_settings_come_once(folder: Path) -> None:
    settings = EngineConfig.from_kwargs(model=str(folder))
    with pytest.raises(ConfigError, match="not both"):
        AsyncLLM(settings, max_num_seqs=3)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        AsyncLLM(model=str(folder), max_num_seq=3)
