"""The benchmark suite: its parts run in processes, a failure is reported, and missing hardware is not a failure."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, suite
from benchmarks.__main__ import main
from benchmarks.suite import NEEDS, PARTS, Part, run_suite
from robocache_ros.errors import RoboCacheError
from test import forked

ROOT = Path(__file__).parents[2]
WORKS, FAILS = Part(("this",), "nothing"), Part(("json.tool", "--no-such-option"), "nothing")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    some = {"works": WORKS, "fails": FAILS, "lacks": Part(("this",), "nothing", ("GPU",))}
    monkeypatch.setattr(suite, "PARTS", some)
    monkeypatch.setitem(suite.NEEDS, "GPU", (lambda: False, "a GPU"))
    return some


def measure(out: Path, *parts: str, **options: Any) -> tuple[int, list[str], dict[str, Any]]:
    """The exit status of a run, its lines, and what it found of each part."""
    lines: list[str] = []
    status = run_suite(list(parts), out, lines.append, **options)
    return status, lines, parts_of(out)


def parts_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "suite.json").read_text(encoding="utf-8"))["parts"]
    return found


def states(found: dict[str, Any]) -> dict[str, str]:
    return {name: one["state"] for name, one in found.items()}


def test_each_part_is_measured_failed_or_not_run(parts, tmp_path):
    status, lines, found = measure(tmp_path, *parts)
    assert status == 1
    assert states(found) == {"works": "measured", "fails": "failed", "lacks": "not run"}
    assert found["lacks"]["reason"] == "needs a GPU"
    assert found["fails"]["reason"].startswith("exit status 2: ")
    assert (tmp_path / "fails" / "output.txt").is_file()
    assert lines[0].endswith(f" works: at most 120 s; its output is in {tmp_path / 'works' / 'output.txt'}")
    assert " works: measured (" in lines[1]


def writes(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    """Let the program of a part write a file before it runs."""
    failure = suite._failure

    def write_and_run(*about: Any) -> tuple[str | None, bool]:
        (folder / name).write_text(text, encoding="utf-8")
        return failure(*about)

    monkeypatch.setattr(suite, "_failure", write_and_run)


@pytest.mark.usefixtures("parts")
def test_the_page_contains_the_tables_and_plots_of_each_part(monkeypatch, tmp_path):
    writes(monkeypatch, tmp_path / "works", "works.md", "# Some figures\n\n| a |\n")
    writes(monkeypatch, tmp_path / "works", "works.png", "")
    measure(tmp_path, "works")
    page = (tmp_path / "suite.md").read_text(encoding="utf-8")
    assert "\n## Some figures\n\n| a |\n" in page
    assert "![works](works/works.png)" in page
    assert re.search(r"\nAll parts together: \d+ s, of at most 1,200 s\.\n", page)
    assert re.search(r"\n\| works \| measured \| [\d.]+ \| 120 \| ", page)


def test_a_part_that_takes_too_long_is_ended_and_what_it_wrote_is_kept(parts, tmp_path, monkeypatch):
    parts["waits"] = Part(("http.server", "0", "--bind", "127.0.0.1"), "nothing", limit_s=0.2)
    failure = suite._failure
    monkeypatch.setattr(suite, "_failure", lambda command, *about: failure(command[:6], *about))
    writes(monkeypatch, tmp_path / "waits", "half.md", "# Half of it\n")
    _, _, found = measure(tmp_path, "waits")
    assert found["waits"]["state"] == "failed"
    assert "ended after 0 s" in found["waits"]["reason"]
    assert "## Half of it" in (tmp_path / "suite.md").read_text(encoding="utf-8")


def test_what_was_measured_before_an_interruption_is_kept(parts, tmp_path, monkeypatch):
    def interrupted(command: list[str], *about: Any) -> tuple[str | None, bool]:
        if "json.tool" in command:
            (tmp_path / "fails" / "half.md").write_text("# Half of it\n", encoding="utf-8")
            raise KeyboardInterrupt
        return None, False

    monkeypatch.setattr(suite, "_failure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, *parts)

    found = parts_of(tmp_path)
    assert states(found) == {"works": "measured", "fails": "cut short"}
    assert found["fails"]["reason"] == "interrupted"
    assert "## Half of it" in (tmp_path / "suite.md").read_text(encoding="utf-8")


def test_without_matplotlib_a_part_is_measured_without_its_plot(parts, tmp_path, monkeypatch):
    monkeypatch.setitem(suite.NEEDS, "plots", (lambda: False, "matplotlib"))
    parts["works"] = Part(("this",), "nothing", plots=True)

    status, _, found = measure(tmp_path, "works")

    assert (status, found["works"]["state"]) == (0, "measured")
    assert found["works"]["reason"] == "no plot, which needs matplotlib"


@pytest.mark.parametrize(
    ("part", "place", "problem"),
    [
        ("vector", "new", r"bench: 'vector' is not a part; choose from training, scaling"),
        ("training", ".", "is not empty; give a new folder"),
        ("training", "suite.json", r"(Not a directory|File exists); give another --out"),
    ],
)
def test_an_unknown_part_and_a_folder_that_is_used_are_refused(part, place, problem, tmp_path):
    (tmp_path / "suite.json").write_text("{}")
    with pytest.raises(RoboCacheError, match=problem):
        run_suite([part], tmp_path / place, lambda _line: None)


@pytest.mark.usefixtures("parts")
def test_without_time_left_parts_are_not_run(tmp_path):
    status, lines, found = measure(tmp_path, "works", "lacks", budget_s=1.0)
    assert (status, len(lines)) == (0, 2)
    assert found["works"]["reason"] == "the 1 s are over; run it alone, or with a larger --budget-s"
    assert found["lacks"]["reason"] == "needs a GPU"


def test_the_machine_is_described_and_its_work_is_counted():
    machine = report.system()
    assert machine["cores"] >= 1
    assert "torch" in machine["versions"]
    assert report.busy_seconds() > 0


# The parts of the suite: their programs, their help, and what they need.


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_the_program_of_a_part_exists(part):
    assert importlib.util.find_spec(part.command[0]) is not None
    assert all(need in NEEDS for need in part.needs)


def test_the_limits_of_the_parts_are_within_the_budget():
    separate = [part.limit_s for name, part in PARTS.items() if name != "scaling"]  # which a machine with one GPU lacks
    assert sum(separate) <= suite.BUDGET_S


def test_the_command_names_what_a_part_needs_and_a_quick_training_needs_no_gpu(capsys, monkeypatch):
    for need, there, text in (("GPU", False, "a GPU"), ("GPUs", False, "two GPUs"), ("datasets", True, "")):
        monkeypatch.setitem(suite.NEEDS, need, (lambda there=there: there, text))
    assert main(["vectors"]) == 2
    assert "benchmarks: vectors: needs a GPU" in capsys.readouterr().err
    for name, need in (("training", "a GPU"), ("scaling", "two GPUs")):
        assert str(PARTS[name].missing()).endswith(need)
        assert PARTS[name].missing(quick=True) is None
    assert PARTS["vectors"].missing(quick=True) == "a GPU"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
@pytest.mark.parametrize("name", ["ops.vectors", "ops.spatial", "ops.roofline", "ingest_cost"])
def test_parts_have_help_with_defaults_without_what_they_need(name, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy" if "ops" in name else "rclpy", None)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert "(default: benchmarks/results)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["vectors", "spatial", "roofline", "tick", "windows", "profile"])
def test_without_cupy_parts_with_kernels_name_it(name, monkeypatch):
    monkeypatch.setitem(NEEDS, "GPU", (lambda: True, "a GPU"))
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda _name: None)
    assert str(PARTS[name].missing()).startswith("CuPy: pip install ")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("from robocache_ros.errors import RoboCacheError as E; raise E('part: wrong; stop')", "part: wrong; stop"),
        ("open('/proc/none/results.json', 'w')", "/proc/none/results.json: No such file or directory; check --out"),
    ],
)
def test_a_mistake_in_a_part_is_one_line(code, lines, tmp_path):
    (tmp_path / "mistaken_part.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.run_part", "works", "mistaken_part"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = forked.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"benchmarks: works: {lines}")
    assert done.stderr.count("\n") == 1
