from pathlib import Path

from octavo.cli.document import document
from octavo.cli.document_kernels import document as document_kernels
from octavo.cli.document_vllm import document as document_vllm

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_configuration_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "Run: python -m octavo.cli.document > docs/configuration.md"


def test_the_page_of_vllms_arguments_is_current() -> None:
    page = PAGE.with_name("vllm-arguments.md").read_text(encoding="utf-8")
    assert page == document_vllm(), "Run: python -m octavo.cli.document_vllm > docs/vllm-arguments.md"


def test_the_page_of_attention_kernels_is_current() -> None:
    page = PAGE.with_name("attention-kernels.md").read_text(encoding="utf-8")
    assert page == document_kernels(), "Run: python -m octavo.cli.document_kernels > docs/attention-kernels.md"
