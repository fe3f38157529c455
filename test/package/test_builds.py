"""The package as colcon builds it and as pip installs it: its files are found, its commands run."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from robocache_ros.extras import EXTRAS

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


def start(*command, cwd, **env):
    """Run a command in a clean environment."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "AMENT_PREFIX_PATH", "COLCON_PREFIX_PATH")}
    kept["PATH"] = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    return subprocess.run(
        [str(c) for c in command], cwd=cwd, env=kept | env, text=True, capture_output=True, timeout=280, check=False
    )


def run(*command, cwd, **env):
    """Run a command in a clean environment and return its output; all of it where it fails."""
    done = start(*command, cwd=cwd, **env)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# The rosdep keys that package.xml names (rosdep/python.yaml of rosdistro): all exist for Debian and Ubuntu 22.04 on.
ROSDEP_KEYS = {
    *("python3-numpy", "python3-yaml", "python3-pil", "python3-torch", "python3-typer", "python3-rich"),
    *("python3-rosbags-pip", "python3-pytest", "python3-pytest-timeout", "python3-hypothesis"),
}


def test_package_xml_names_rosdep_keys_that_exist_and_the_address_of_setup_py():
    declared = ElementTree.parse(SOURCE / "package.xml").getroot()
    keys = {e.text for e in declared if e.tag.endswith("_depend") and str(e.text).startswith("python3-")}
    assert keys == ROSDEP_KEYS
    urls = {e.get("type"): e.text for e in declared.iter("url")}
    assert urls["repository"] == urls["website"]
    assert urls["bugtracker"] == f"{urls['repository']}/issues"
    assert f'URL = "{urls["repository"]}"' in (SOURCE / "setup.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources with nothing built in it."""
    copy = tmp_path_factory.mktemp("source") / "robocache_ros"
    built = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "*build", "install", "log", "out", "*.png")
    return Path(shutil.copytree(SOURCE, copy, ignore=built))


def sources(tree):
    """The files that each folder has in the sources."""
    folders = {name: tree / name for name in (*FOLDERS, "robocache_ros")}
    return {
        name: sorted(str(p.relative_to(f)) for p in f.rglob("*") if p.is_file() and p.suffix != ".pyc")
        for name, f in folders.items()
    }


def pip_install(tree, home, *options):
    """Install a source tree or a wheel into an environment that sees this one's packages, and give its bin folder."""
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tree.parent)
    code = "import sysconfig as s; print(s.get_path('purelib'))"
    site = Path(run(home / "bin" / "python", "-c", code, cwd=tree.parent).strip())
    # A path file, not PYTHONPATH: it comes after the environment's own packages and carries no editable install along.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet")
    run(*pip, "--no-deps", "--no-build-isolation", "--no-index", *options, tree, cwd=tree.parent)
    return home / "bin"


@pytest.mark.parametrize("editable", [False, True])
def test_pip_install_finds_the_files_and_puts_robocache_on_the_path(tree, tmp_path, editable):
    pytest.importorskip("typer")
    bin_ = pip_install(tree, tmp_path / "env", *(["--editable"] if editable else []))
    found = json.loads(run(bin_ / "python", "-c", REPORT, cwd=tmp_path))
    share = tree if editable else tmp_path / "env" / "share" / "robocache_ros"
    assert found["files"] == sources(tree)
    assert [Path(found[name]) for name in FOLDERS] == [share / name for name in FOLDERS]
    assert Path(found["robocache_ros"]).is_relative_to(tree if editable else tmp_path / "env")
    demo = "from robocache_ros.cli.demo import parser; print(*parser().parse_args([]).bag.iterdir(), sep='\\n')"
    recording = [Path(file) for file in run(bin_ / "python", "-c", demo, cwd=tmp_path).split()]
    assert {file.name for file in recording} >= {"metadata.yaml", "panda_lift.mcap"}
    assert all(file.is_relative_to(share) for file in recording)
    assert "export" in run("robocache", "--help", cwd=tmp_path, PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    """The wheel that `make dist` builds from the sdist."""
    pytest.importorskip("build", reason="needs the `dev` extra")
    pytest.importorskip("twine", reason="needs the `dev` extra")
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree, cwd=tree)
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)
    return next(dist.glob("*-py3-none-any.whl"))


def test_the_wheel_has_every_file_of_the_package_its_types_and_complete_links_for_pypi(wheel, tree):
    package = zipfile.ZipFile(wheel)
    names = package.namelist()
    assert "robocache_ros/py.typed" in names
    for folder, files in sources(tree).items():
        assert [file for file in files if not any(name.endswith(f"{folder}/{file}") for name in names)] == []
    metadata = package.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert len(links) > 30


# In an environment without the extras but `cli`: their modules are not found.
WITHOUT_EXTRAS = f"""
import sys

class WithoutExtras:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted({*EXTRAS} - {"typer", "click", "rich"})}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, WithoutExtras())
"""


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The bin folder of an environment that has the wheel, torch and the extra `cli`."""
    home = tmp_path_factory.mktemp("bare")
    bin_ = pip_install(wheel, home)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "without_extras.py").write_text(WITHOUT_EXTRAS)
    (site / "without_extras.pth").write_text("import without_extras\n")
    return bin_


BAG, SPEC = "{share}/test/data/panda_lift", "{share}/config/panda_lift.yaml"
ZSTD = "bags" if sys.version_info < (3, 14) else ""  # which compresses the recording, is part of Python 3.14
COMMANDS = {
    **dict.fromkeys(("robocache --version", f"robocache check {SPEC}", "robocache schema", "robocache env"), ""),
    **dict.fromkeys(("robocache self-test", "robocache calibrate --help"), ""),
    **dict.fromkeys((f"robocache info {BAG}", f"robocache check {SPEC} {BAG}"), ZSTD),
    f"robocache export {BAG} --spec {SPEC} --out lift": "bags",
    f"robocache report {BAG} --spec {SPEC} --out lift.html": ZSTD or "export",
    f"robocache view {BAG}": "view",
    f"robocache play {BAG}": "ros",
    f"robocache record --spec {SPEC} --out out": "ros",
    f"robocache run policy.py:policy --spec {SPEC}": "ros",
    **dict.fromkeys(("robocache demo", "robocache sim", "robocache bench live"), "ros"),
    **dict.fromkeys(("fusion_node", "policy_runner", f"bag_player {BAG}", "episode_recorder", "simulator"), "ros"),
}


@pytest.mark.parametrize(("command", "extra"), COMMANDS.items(), ids=[c.split("{")[0].strip() for c in COMMANDS])
def test_a_command_of_the_wheel_works_or_names_its_extra(bare, tmp_path, command, extra):
    pytest.importorskip("typer")
    program, *arguments = command.format(share=bare.parent / "share" / "robocache_ros").split()
    (tmp_path / "policy.py").touch()
    done = start(bare / program, *arguments, cwd=tmp_path)
    assert done.returncode == (2 if extra else 0), done.stderr
    if extra:
        assert done.stderr.endswith(f"pip install 'robocache_ros[{extra}]'\n")
        assert done.stderr.count("\n") == 1


def test_the_wheel_exports_its_recording_without_the_checkout(wheel, tmp_path):
    for module in ("typer", "rosbags", "pyarrow"):
        pytest.importorskip(module)
    bin_, share = pip_install(wheel, tmp_path / "env"), tmp_path / "env" / "share" / "robocache_ros"
    options = ("--spec", share / "config" / "panda_lift.yaml", "--media", "none", "--out", "lift")
    run(bin_ / "robocache", "export", share / "test" / "data" / "panda_lift", *options, cwd=tmp_path)
    assert (tmp_path / "lift" / "meta" / "info.json").is_file()


def colcon(tree, ws, verb, *options):
    """Run colcon in `ws` on `tree`."""
    assert COLCON
    bases = ["--build-base", "build", "--install-base", "install"]
    where = ["--base-paths", str(tree), *bases] if verb != "test-result" else []
    return run(COLCON, "--log-base", "log", verb, *where, *options, cwd=ws)


@needs_colcon
@pytest.mark.parametrize("options", [(), ("--symlink-install",)])
def test_colcon_build_finds_the_files_in_the_workspace_or_by_links_in_the_sources(tree, tmp_path, options):
    colcon(tree, tmp_path, "build", *options)
    found = json.loads(run("bash", "-c", 'source install/setup.bash && python -c "$CODE"', cwd=tmp_path, CODE=REPORT))
    prefix = tmp_path / "install" / "robocache_ros"
    share = prefix / "share" / "robocache_ros"
    source = tree if options else share
    assert found["files"] == sources(tree)
    assert [Path(found[name]) for name in FOLDERS] == [source / name for name in FOLDERS]
    assert options or Path(found["robocache_ros"]).is_relative_to(prefix)
    # What ros2 launch reads is a link, so that an edited launch file counts at once.
    assert (share / "package.xml").resolve() == source / "package.xml"
    assert os.access(prefix / "lib" / "robocache_ros" / "fusion_node", os.X_OK)


@needs_colcon
def test_colcon_test_runs_the_tests(tree, tmp_path):
    colcon(tree, tmp_path, "build")
    colcon(tree, tmp_path, "test", "--pytest-args", "test/package/test_imports.py", "test/spec")
    summary = re.search(r"Summary: (\d+) tests, 0 errors, 0 failures", colcon(tree, tmp_path, "test-result", "--all"))
    assert summary
    assert int(summary[1]) > 100
