"""The reference page stands as the declarations would write it today."""

from pathlib import Path

from robocache_ros.spec_docs import reference

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"


def test_the_reference_page_is_what_the_declarations_say():
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python -m robocache_ros.spec_docs > docs/spec.md"
