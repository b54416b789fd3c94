"""The page's files from ``static/``, read once at start; requests never reach the file system."""

from importlib.resources import files

from octavo.api.static_files import StaticFile, walk_files

PAGE = "/"
FOLDER = "/console/"
# Swagger UI is kept with the other libraries, but belongs to /docs.
_DOCS_LIBRARY = "vendor/swagger-ui/"


def console_files() -> dict[str, StaticFile]:
    """Every file by the path under which it is served: the page at ``/``, the rest in ``/console/``."""
    return {
        PAGE if path == "index.html" else FOLDER + path: file
        for path, file in walk_files(files("octavo.api.console").joinpath("static"))
        if not path.startswith(_DOCS_LIBRARY)
    }


def docs_library() -> dict[str, StaticFile]:
    """The files of Swagger UI by their names."""
    return dict(walk_files(files("octavo.api.console").joinpath("static", *_DOCS_LIBRARY.strip("/").split("/"))))
