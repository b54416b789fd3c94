"""A compiler for tests of what surrounds it."""

from octavo.kernels.cuda.nvrtc import Compiled, CompileError


class FakeCompiler:
    """Compiles each source to its options, unless it has the word ``error``; keeps what it was asked for."""

    version = 13, 0

    def __init__(self) -> None:
        self.options: list[tuple[str, ...]] = []

    def compile(self, name: str, source: str, headers: dict[str, str], options: tuple[str, ...]) -> Compiled:
        self.options.append(options)
        if "error" in source:
            raise CompileError(f"{name}(1): error: it has one")
        return Compiled(" ".join(options).encode(), "")
