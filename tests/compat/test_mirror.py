"""``vllm`` as a package: what can be imported, what cannot, and that an installed one is left alone."""

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from compat.conftest import run_python

import octavo
from octavo.compat.table import ROWS, VERSION, mirrored_modules

MODULES = mirrored_modules()


@pytest.mark.parametrize("path", MODULES)
def test_every_name_of_the_table_is_there(mirror: None, path: str) -> None:
    module = importlib.import_module(path)
    for name in MODULES[path]:
        assert getattr(module, name) is not None
        assert name in dir(module)
    assert sorted(module.__all__) == sorted(MODULES[path])


def test_no_row_gives_a_name_of_a_module_twice() -> None:
    names = [(module, name) for row in ROWS for module in row.modules for name in row.targets()]
    assert len(names) == len(set(names))


def test_the_mirror_tells_its_version(mirror: None) -> None:
    assert importlib.util.find_spec("vllm") is not None
    assert importlib.metadata.version("vllm") == VERSION
    assert importlib.metadata.version("numpy")  # others are still found
    import vllm

    assert vllm.__version__ == VERSION
    assert vllm.LLM is octavo.LLM and vllm.SamplingParams is octavo.SamplingParams
    assert vllm.engine.arg_utils.EngineArgs is vllm.EngineArgs


def test_what_octavo_lacks_is_named(mirror: None) -> None:
    import vllm

    with pytest.raises(ImportError, match=r"Octavo has no vllm\.outputs\.PoolerOutput: it mirrors a part"):
        exec("from vllm.outputs import PoolerOutput")
    with pytest.raises(ImportError, match=r"no vllm\.utils\.cdiv"):
        exec("from vllm.utils import cdiv")
    for path in ("vllm.multimodal.utils", "vllm.assets.image"):
        with pytest.raises(ModuleNotFoundError, match=rf"no {path.rpartition('.')[0]}: models take text only so far"):
            importlib.import_module(path)
    with pytest.raises(ImportError, match="models take text only so far"):
        exec("from vllm.assets.image import ImageAsset")
    with pytest.raises(AttributeError, match=r"no vllm\.initialize_ray_cluster"):
        _ = vllm.initialize_ray_cluster
    assert not hasattr(vllm, "initialize_ray_cluster")


def test_importing_the_mirror_loads_no_torch() -> None:
    found = run_python(
        "-c", "import octavo.compat.vllm, sys, vllm, vllm.sampling_params as s; s.SamplingParams(); print(*sys.modules)"
    )
    assert not {"torch", "transformers", "fastapi"} & set(found.split())


def test_an_installed_vllm_is_left_alone(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport octavo.compat.mirror as mirror\n"
        "try:\n    mirror.install()\nexcept ImportError as error:\n    print(error)\n"
        "import vllm\nprint(vllm.__version__)\n"
        "try:\n    mirror.install()\nexcept ImportError as error:\n    print(error)\n"
    )
    first, version, second = run_python(str(script)).splitlines()
    assert str(package / "__init__.py") in first and "Octavo does not hide it" in first
    assert version == "real"
    assert "imported before" in second
    module = subprocess.run(
        [sys.executable, "-m", "octavo.compat", "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert module.returncode == 1 and "does not hide it" in module.stderr


def test_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, helper, vllm\nprint(sys.argv[1:], __name__, helper.VALUE, vllm.__version__)\n"
        "if len(sys.argv) > 1:\n    sys.exit(int(sys.argv[1]))\n"
    )
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    assert run_python("-m", "octavo.compat", str(script)) == f"[] __main__ 3 {VERSION}\n"
    ended = subprocess.run([sys.executable, "-m", "octavo.compat", str(script), "7"], capture_output=True, check=False)
    assert ended.returncode == 7
    module = subprocess.run(
        [sys.executable, "-m", "octavo.compat", "-m", "job"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert module.stdout == f"[] __main__ 3 {VERSION}\n"
    for arguments, status in (([], 2), (["--help"], 0), (["nothing.py"], 2)):
        wrong = subprocess.run(
            [sys.executable, "-m", "octavo.compat", *arguments], capture_output=True, text=True, check=False
        )
        assert wrong.returncode == status and wrong.stderr
        assert "Traceback" not in wrong.stderr
