"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robocache_ros.spec import load_spec
from robocache_ros.spec_docs import reference

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
YAML = re.compile(r"```yaml\n(robocache: 1\n.*?)```", re.DOTALL)


def test_spec_reference_is_current() -> None:
    assert (ROOT / "docs" / "spec.md").read_text(encoding="utf-8") == reference(), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_fusion_specs_in_the_pages_are_valid(page: Path, tmp_path: Path) -> None:
    for i, text in enumerate(YAML.findall(page.read_text(encoding="utf-8"))):
        path = tmp_path / f"{i}.yaml"
        path.write_text(text, encoding="utf-8")
        assert load_spec(path).streams


def test_operations_page_runs_as_it_stands() -> None:
    code = "\n".join(PYTHON.findall((ROOT / "docs" / "operations.md").read_text(encoding="utf-8")))

    exec(compile(code, "operations.md", "exec"), {})
