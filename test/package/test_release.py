"""What a release consists of agrees: versions, the ROS package, workflows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import robocache_ros

ROOT = Path(__file__).parents[2]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere_and_the_changelog_begins_with_it_or_with_what_comes_after_it():
    version, recipe = robocache_ros.__version__, yaml.safe_load(text("recipe/recipe.yaml"))
    assert re.findall(r"<version>(.+)</version>", text("package.xml")) == [version] == [recipe["context"]["version"]]
    titles = [title.split(" ")[0] for title in re.findall(r"^(.+)\n-{3,}$", text("CHANGELOG.rst"), re.MULTILINE)]
    assert titles[0] in (version, "Forthcoming")
    assert version in titles


def test_package_xml_is_valid_for_bloom():
    catkin_pkg = pytest.importorskip("catkin_pkg.package", reason="needs the `dev` extra")
    warnings: list[str] = []
    package = catkin_pkg.parse_package(str(ROOT), warnings=warnings)
    package.validate()
    assert warnings == []
    assert (package.package_format, package.licenses) == (3, ["Apache-2.0"])
    assert (ROOT / package.licenses[0].file).is_file()


def test_the_recipe_needs_the_packages_that_package_xml_needs():
    declared = re.findall(r"<exec_depend>(\w+)</exec_depend>", text("package.xml"))
    recipe = yaml.safe_load(text("recipe/recipe.yaml"))
    ros = {need.rpartition("}}-")[2].replace("-", "_") for need in recipe["requirements"]["run"] if "distro" in need}
    assert ros == {name for name in declared if not name.startswith("python3")}
    (programs,) = re.findall(r"for program in ([\w ]+);", str(recipe["build"]["script"]))
    assert set(programs.split()) == set(re.findall(r'"(\w+) = robocache_ros.programs', text("setup.py")))


def test_every_public_name_of_the_package_is_on_the_page_of_the_api():
    named = re.findall(r"^\| `(\w+)`", text("docs/reference/api.md"), re.MULTILINE)
    assert {*robocache_ros.__all__} - {*named} == {"__version__"}


def test_every_page_is_in_the_index_and_every_example_on_the_page_of_examples():
    index, examples, docs = text("docs/README.md"), text("docs/tutorial/examples.md"), ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.glob("*/*.md") if page.parent.name not in ("api", "_build")}
    assert {page for page in pages if f"]({page})" not in index} == set()
    assert [file.name for file in (ROOT / "examples").glob("*.py") if file.name not in examples] == []


def test_workflows_call_targets_and_extras_that_exist():
    makefile, setup = text("Makefile"), text("setup.py")
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        ran = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        targets = [target for line in ran for target in re.findall(r"^make ([\w-]+)", line)]
        assert [target for target in targets if f"\n{target}:" not in makefile] == []
        extras = [extra for line in ran for found in re.findall(r"\.\[([\w,]+)\]", line) for extra in found.split(",")]
        assert [extra for extra in extras if f'"{extra}": ' not in setup] == []
