"""The Dockerfile, read without Docker: what it pins, and that what it copies is enough to install the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test.fleet.deploy.conftest import DEPLOY, ROOT

LINES = (DEPLOY / "Dockerfile").read_text().splitlines()
ARGUMENTS = dict(line[4:].split("=", 1) for line in LINES if line.startswith("ARG "))


def instructions(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{name} ")]


def test_versions_are_pinned() -> None:
    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+", ARGUMENTS["PYTHON"])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", ARGUMENTS[name]) for name in ("TORCH", "RAY"))
    assert {base.partition(" ")[0] for base in instructions("FROM")} == {"python:${PYTHON}"}


def test_the_programs_do_not_run_as_root() -> None:
    last = max(number for number, line in enumerate(LINES) if line.startswith("FROM "))
    (user,) = [line for line in LINES[last:] if line.startswith("USER ")]
    assert user == "USER 1000"
    assert instructions("RUN")[-1] == "useradd --create-home --uid 1000 robocache"


def test_the_extras_exist() -> None:
    setup = (ROOT / "setup.py").read_text()
    gpu = re.findall(r"EXTRAS=([\w,]+)$", "\n".join(LINES[:6]), re.MULTILINE)
    for name in ",".join([ARGUMENTS["EXTRAS"], *gpu]).split(","):
        assert f'"{name}": [' in setup


def test_the_entry_point_is_a_program_of_the_package() -> None:
    assert instructions("ENTRYPOINT") == ['["robocache"]']
    assert '"robocache = ' in (ROOT / "setup.py").read_text()


@pytest.mark.package
def test_what_the_ignore_file_lets_in_is_enough_to_install_the_package(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            if path.is_file():
                shutil.copy(path, source)
            else:
                shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(tmp_path / "to"), str(source)], check=True, timeout=100)
    assert (tmp_path / "to" / "share" / "robocache_ros" / "kernels").is_dir()
    done = subprocess.run(
        [sys.executable, "-m", "robocache_ros", "--version"],
        cwd=tmp_path / "to",
        env={"PYTHONPATH": str(tmp_path / "to"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
