"""The package as colcon builds it and as pip installs it: its files are found, its commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.package

SOURCE = Path(__file__).parents[2]
FOLDERS = ("kernels", "config", "launch")
BIN = Path(sys.executable).parent
COLCON = shutil.which("colcon", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
needs_colcon = pytest.mark.skipif(COLCON is None, reason="colcon is not installed (pip install '.[test]')")

# Prints where the package and its folders are, and every file in them.
REPORT = f"""
import json, pathlib, robocache_ros
from robocache_ros.resources import resource
folders = {{name: resource(name) for name in {FOLDERS}}}
folders["robocache_ros"] = pathlib.Path(robocache_ros.__file__).parent
files = {{name: sorted(str(p.relative_to(f)) for p in f.rglob("*") if p.is_file() and p.suffix != ".pyc")
          for name, f in folders.items()}}
print(json.dumps(dict(files=files, **{{k: str(v) for k, v in folders.items()}})))
"""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command in a clean environment and return its output; all of it where it fails."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "AMENT_PREFIX_PATH", "COLCON_PREFIX_PATH")}
    kept["PATH"] = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=kept | env, text=True, capture_output=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# The rosdep keys that package.xml names (rosdep/python.yaml of rosdistro): all exist for Debian and Ubuntu 22.04 on.
ROSDEP_KEYS = {
    *("python3-numpy", "python3-yaml", "python3-pil", "python3-torch", "python3-typer", "python3-rich"),
    *("python3-rosbags-pip", "python3-pytest", "python3-pytest-timeout", "python3-hypothesis"),
}


def test_package_xml_names_rosdep_keys_that_exist() -> None:
    declared = ElementTree.parse(SOURCE / "package.xml").getroot()
    keys = {e.text for e in declared if e.tag.endswith("_depend") and str(e.text).startswith("python3-")}

    assert keys == ROSDEP_KEYS


def test_package_xml_and_setup_py_name_one_address() -> None:
    declared = ElementTree.parse(SOURCE / "package.xml").getroot()
    urls = {e.get("type"): e.text for e in declared.iter("url")}

    assert urls["repository"] == urls["website"]
    assert urls["bugtracker"] == f"{urls['repository']}/issues"
    assert f'URL = "{urls["repository"]}"' in (SOURCE / "setup.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with nothing built in it."""
    copy = tmp_path_factory.mktemp("source") / "robocache_ros"
    built = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "install", "log", "out", "*.png")
    return Path(shutil.copytree(SOURCE, copy, ignore=built))


def sources(tree: Path) -> dict[str, list[str]]:
    """The files that each folder has in the sources."""
    return {
        name: sorted(
            str(p.relative_to(tree / name)) for p in (tree / name).rglob("*") if p.is_file() and p.suffix != ".pyc"
        )
        for name in (*FOLDERS, "robocache_ros")
    }


def pip_install(tree: Path, home: Path, *options: str) -> Path:
    """Install `tree` into a new virtual environment that sees this one's packages, and give its bin folder."""
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tree)
    site = Path(
        run(home / "bin" / "python", "-c", "import sysconfig as s; print(s.get_path('purelib'))", cwd=tree).strip()
    )
    # A path file, not PYTHONPATH: it comes after the environment's own packages and carries no editable install along.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet")
    run(*pip, "--no-deps", "--no-build-isolation", "--no-index", *options, tree, cwd=tree)
    return home / "bin"


def test_pip_install_finds_the_files_in_the_environment(tree: Path, tmp_path: Path) -> None:
    bin_ = pip_install(tree, tmp_path / "env")

    found = json.loads(run(bin_ / "python", "-c", REPORT, cwd=tmp_path))

    assert found["files"] == sources(tree)
    assert Path(found["kernels"]) == tmp_path / "env" / "share" / "robocache_ros" / "kernels"
    assert Path(found["robocache_ros"]).is_relative_to(tmp_path / "env")
    demo = "from robocache_ros.cli.demo import parser; print(*parser().parse_args([]).bag.iterdir(), sep='\\n')"
    recording = run(bin_ / "python", "-c", demo, cwd=tmp_path).split()
    assert {Path(file).name for file in recording} >= {"metadata.yaml", "panda_lift.mcap"}
    assert all(Path(file).is_relative_to(tmp_path / "env") for file in recording)


def test_editable_install_finds_the_files_in_the_sources(tree: Path, tmp_path: Path) -> None:
    bin_ = pip_install(tree, tmp_path / "env", "--editable")

    found = json.loads(run(bin_ / "python", "-c", REPORT, cwd=tmp_path))

    assert found["files"] == sources(tree)
    assert [Path(found[name]) for name in FOLDERS] == [tree / name for name in FOLDERS]


@pytest.mark.parametrize("options", [(), ("--editable",)], ids=["install", "editable"])
def test_pip_puts_robocache_on_the_path(tree: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("typer")
    bin_ = pip_install(tree, tmp_path / "env", *options)

    assert "export" in run("robocache", "--help", cwd=tmp_path, PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}")


def colcon(tree: Path, ws: Path, verb: str, *options: str) -> str:
    """Run colcon in `ws` on `tree`."""
    assert COLCON
    bases = ["--build-base", "build", "--install-base", "install"]
    where = ["--base-paths", str(tree), *bases] if verb != "test-result" else []
    return run(COLCON, "--log-base", "log", verb, *where, *options, cwd=ws)


def sourced(ws: Path, code: str) -> str:
    """Run Python code with the workspace `ws` sourced."""
    return run("bash", "-c", 'source install/setup.bash && python -c "$CODE"', cwd=ws, CODE=code)


@needs_colcon
def test_colcon_build_finds_the_files_in_the_workspace(tree: Path, tmp_path: Path) -> None:
    colcon(tree, tmp_path, "build")

    found = json.loads(sourced(tmp_path, REPORT))

    prefix = tmp_path / "install" / "robocache_ros"
    assert found["files"] == sources(tree)
    assert Path(found["launch"]) == prefix / "share" / "robocache_ros" / "launch"
    assert Path(found["robocache_ros"]).is_relative_to(prefix)
    assert os.access(prefix / "lib" / "robocache_ros" / "fusion_node", os.X_OK)


@needs_colcon
def test_colcon_symlink_install_finds_the_files_in_the_sources(tree: Path, tmp_path: Path) -> None:
    colcon(tree, tmp_path, "build", "--symlink-install")

    found = json.loads(sourced(tmp_path, REPORT))

    prefix = tmp_path / "install" / "robocache_ros"
    assert found["files"] == sources(tree)
    assert [Path(found[name]) for name in FOLDERS] == [tree / name for name in FOLDERS]
    # What ros2 launch reads is a link, so that an edited launch file counts at once.
    assert (prefix / "share" / "robocache_ros" / "package.xml").resolve() == tree / "package.xml"
    assert os.access(prefix / "lib" / "robocache_ros" / "fusion_node", os.X_OK)


@needs_colcon
def test_colcon_test_runs_the_tests(tree: Path, tmp_path: Path) -> None:
    colcon(tree, tmp_path, "build")
    colcon(tree, tmp_path, "test", "--pytest-args", "test/package/test_imports.py", "test/spec")

    summary = re.search(r"Summary: (\d+) tests, 0 errors, 0 failures", colcon(tree, tmp_path, "test-result", "--all"))
    assert summary is not None
    assert int(summary[1]) > 100
