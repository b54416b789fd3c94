from pathlib import Path

from octavo.cli.document import document

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_configuration_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "Run: python -m octavo.cli.document > docs/configuration.md"
