"""Builds the pages of this folder as a site, with Sphinx: `make docs`."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # rosdoc2 builds a copy of docs/, and uses the package that is sourced

from sphinx.ext.autodoc.mock import mock  # noqa: E402

from robocache_ros import __version__  # noqa: E402 - of this checkout

project = "RoboCache ROS"
author = "the contributors of RoboCache ROS"
copyright = "the contributors of RoboCache ROS, Apache-2.0"  # noqa: A001 - Sphinx's name
version = release = __version__
REPOSITORY = "https://github.com/robocache/robocache_ros"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# index.md has the contents of README.md. The others are what rosdoc2 adds.
exclude_patterns = ["README.md", "_build", "*.rst", "standard_docs"]
rosdoc2_settings = {"override_theme": False, "enable_intersphinx": False}
rosdoc2_settings["automatically_extend_intersphinx_mapping"] = False
myst_heading_anchors = 4
suppress_warnings = ["ref.python"]  # attributes of one name, such as `valid`, in several classes
default_role = "code"  # docstrings have Markdown's `code`
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Errors", "Raises")]
autodoc_mock_imports = ["message_filters"]  # not on PyPI
try:
    import rclpy  # noqa: F401 - the wheels of the extra `ros`, or a sourced ROS
except ImportError:
    packages = ("rosgraph", "std", "sensor", "geometry", "diagnostic", "lifecycle", "trajectory")
    autodoc_mock_imports += ["rclpy", *(f"{package}_msgs" for package in packages)]
    with mock(autodoc_mock_imports):
        import robocache_ros.client
        import robocache_ros.nodes.fused_subscriber as subscriber
    robocache_ros.client.FusedSubscriber = subscriber.FusedSubscriber

html_theme = "furo"
html_title = f"RoboCache ROS {version}"
html_show_sphinx = False
html_static_path = html_css_files = ["site.css"]
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def api_pages() -> dict[str, str]:
    """Return a page of docstrings for each module of reference/api.md, by its name."""
    _, *sections = re.split(r"^## `", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {}
    for section in sections:
        module = section.partition("`")[0]
        names = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
        if names:
            shown = f".. automodule:: {module}\n   :members: {', '.join(names)}\n"
            pages[module] = f"# {module}\n\n```{{eval-rst}}\n{shown}```\n"
    return pages


def read_page(_app: Any, page: str, source: list[str]) -> None:
    """Add to a page what the site has beyond the repository, and lead links out of docs/ to the repository."""

    def led(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[0]))
        return link[0] if path.startswith("docs/") else f"{REPOSITORY}/blob/main/{path}"

    source[0] = LINK.sub(led, source[0])
    if page == "reference/api":
        source[0] = re.sub(r"^## `([\w.]+)`", r"## {py:mod}`\1`", source[0], flags=re.MULTILINE)
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", *(f"../api/{name}" for name in api_pages()), "```", ""])


def setup(app: Any) -> None:
    """Write the pages of docstrings, and connect `read_page`."""
    (DOCS / "api").mkdir(exist_ok=True)
    for name, text in api_pages().items():
        page = DOCS / "api" / f"{name}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:  # else Sphinx would read it again
            page.write_text(text, encoding="utf-8")
    app.connect("source-read", read_page)
