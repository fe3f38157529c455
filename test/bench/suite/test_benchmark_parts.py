"""The parts of the suite: their programs, their help, and what they need."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from robocache_ros.bench.suite import benchmark_parts, run_parts
from robocache_ros.bench.suite.benchmark_parts import NEEDS, PARTS, Part
from robocache_ros.cli.commands import main
from robocache_ros.errors import RoboCacheError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_the_program_of_a_part_exists(part: Part) -> None:
    assert importlib.util.find_spec(part.command[0]) is not None
    assert part.plot is None or importlib.util.find_spec(part.plot) is not None
    assert all(need in NEEDS for need in part.needs)


@pytest.mark.parametrize("part", [part for part in PARTS.values() if part.in_suite], ids=lambda part: part.command[-1])
def test_the_program_of_a_part_has_the_options_of_the_suite(part: Part) -> None:
    module = "robocache_ros.bench.command" if part.command[0] == "robocache_ros" else part.command[0]
    place = importlib.util.find_spec(module)
    assert place is not None
    place = importlib.util.find_spec(f"{module}.__main__") if place.submodule_search_locations else place
    assert place is not None
    program = Path(str(place.origin)).read_text(encoding="utf-8")
    for option in (each for each in part.in_suite if each.startswith("--")):
        assert f'"{option}"' in program or f"    {option[2:]}: Annotated[" in program


def test_the_limits_of_the_parts_are_within_the_budget() -> None:
    alone = [part.limit_s for name, part in PARTS.items() if name != "scaling"]  # which a machine with one GPU lacks
    assert sum(alone) <= run_parts.BUDGET_S


def test_the_command_names_what_a_part_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(benchmark_parts.NEEDS, "GPU", (lambda: False, "a GPU"))
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "vectors"])
    assert "bench vectors: needs a GPU" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
@pytest.mark.parametrize("name", ["ops.vectors", "ops.spatial", "ops.roofline", "live.ingest_cost"])
def test_parts_have_help_with_defaults_without_what_they_need(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy" if "ops" in name else "rclpy", None)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"robocache_ros.bench.{name}", run_name="__main__")
    assert "(default: benchmarks/results)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["vectors", "spatial", "roofline", "tick", "windows", "profile"])
def test_without_cupy_parts_with_kernels_name_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "GPU", (lambda: True, "a GPU"))
    monkeypatch.setattr(benchmark_parts.importlib.util, "find_spec", lambda _name: None)
    assert str(PARTS[name].missing()).startswith("CuPy: pip install ")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "from robocache_ros.errors import RoboCacheError; raise RoboCacheError('part: wrong; stop')",
            "part: wrong; stop",
        ),
        ("open('/proc/none/results.json', 'w')", "/proc/none/results.json: No such file or directory; check --out"),
    ],
)
def test_a_mistake_in_a_part_is_one_line(code: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mistaken_part.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "robocache_ros.bench.suite.part_program", "works", "mistaken_part"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"robocache: bench works: {told}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["training", "scaling"])
def test_a_quick_run_of_a_training_needs_no_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "GPU", (lambda: False, "a GPU"))
    monkeypatch.setitem(NEEDS, "GPUs", (lambda: False, "two GPUs"))
    monkeypatch.setitem(NEEDS, "datasets", (lambda: True, ""))
    assert str(PARTS[name].missing()).endswith(("a GPU", "two GPUs"))
    assert PARTS[name].missing(quick=True) is None
    assert PARTS["vectors"].missing(quick=True) == "a GPU"


def test_the_commands_of_an_export_need_their_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["export", f"--bag={tmp_path / 'none'}", f"--out={tmp_path / 'out'}"])
    with pytest.raises(RoboCacheError, match="none: does not exist; give --bag and --spec, or leave `commands` out"):
        runpy.run_module("robocache_ros.bench.export", run_name="__main__")
    assert not (tmp_path / "out").exists()
