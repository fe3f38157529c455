"""The benchmark suite: its parts run in processes, a failure is reported, and missing hardware is not a failure."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.bench.suite import benchmark_parts, run_parts, system_state
from robocache_ros.bench.suite.benchmark_parts import Part
from robocache_ros.bench.suite.run_parts import run_suite
from robocache_ros.errors import RoboCacheError

ROOT = Path(__file__).parents[3]
WORKS, FAILS = Part(("this",), "nothing"), Part(("json.tool", "--no-such-option"), "nothing")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    some = {"works": WORKS, "fails": FAILS, "lacks": Part(("this",), "nothing", ("GPU",))}
    monkeypatch.setattr(run_parts, "PARTS", some)
    monkeypatch.setitem(benchmark_parts.NEEDS, "GPU", (lambda: False, "a GPU"))
    return some


def test_each_part_is_told_as_measured_failed_or_not_run(parts: dict[str, Part], tmp_path: Path) -> None:
    told: list[str] = []
    assert run_suite(list(parts), tmp_path, told.append) == 1
    found = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))["parts"]
    assert {name: one["state"] for name, one in found.items()} == {
        "works": "measured", "fails": "failed", "lacks": "not run",
    }  # fmt: skip
    assert found["lacks"]["reason"] == "needs a GPU"
    assert found["fails"]["reason"].startswith("exit status 2: ")
    assert (tmp_path / "fails" / "output.txt").is_file()
    assert told[0].endswith(f" works: at most 120 s; its output is in {tmp_path / 'works' / 'output.txt'}")
    assert " works: measured (" in told[1]


def writes(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    """Let the program of a part write a file before it runs."""
    failure = run_parts._failure

    def write_and_run(*about: Any) -> tuple[str | None, bool]:
        (folder / name).write_text(text, encoding="utf-8")
        return failure(*about)

    monkeypatch.setattr(run_parts, "_failure", write_and_run)


@pytest.mark.usefixtures("parts")
def test_the_page_contains_the_tables_and_plots_of_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writes(monkeypatch, tmp_path / "works", "works.md", "# Some figures\n\n| a |\n")
    writes(monkeypatch, tmp_path / "works", "works.png", "")
    run_suite(["works"], tmp_path, lambda _line: None)
    page = (tmp_path / "suite.md").read_text(encoding="utf-8")
    assert "\n## Some figures\n\n| a |\n" in page
    assert "![works](works/works.png)" in page
    assert re.search(r"\nAll parts together: \d+ s, of at most 1,200 s\.\n", page)
    assert re.search(r"\n\| works \| measured \| [\d.]+ \| 120 \| ", page)


def test_an_unknown_part_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match=r"bench: 'vector' is not a part; choose from training, scaling"):
        run_suite(["vector"], tmp_path, lambda _line: None)


def test_a_part_that_takes_too_long_is_ended_and_what_it_wrote_is_kept(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts["waits"] = Part(("http.server", "0", "--bind", "127.0.0.1"), "nothing", limit_s=0.2)
    failure = run_parts._failure
    monkeypatch.setattr(run_parts, "_failure", lambda command, *about: failure(command[:6], *about))
    writes(monkeypatch, tmp_path / "waits", "half.md", "# Half of it\n")
    run_suite(["waits"], tmp_path, lambda _line: None)
    found = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))["parts"]["waits"]
    assert found["state"] == "failed"
    assert "ended after 0 s" in found["reason"]
    assert "## Half of it" in (tmp_path / "suite.md").read_text(encoding="utf-8")


def test_what_was_measured_before_an_interruption_is_kept(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(command: list[str], *about: Any) -> tuple[str | None, bool]:
        if "json.tool" in command:
            (tmp_path / "fails" / "half.md").write_text("# Half of it\n", encoding="utf-8")
            raise KeyboardInterrupt
        return None, False

    monkeypatch.setattr(run_parts, "_failure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_suite(list(parts), tmp_path, lambda _line: None)

    found = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))["parts"]
    assert {name: one["state"] for name, one in found.items()} == {"works": "measured", "fails": "cut short"}
    assert found["fails"]["reason"] == "interrupted"
    assert "## Half of it" in (tmp_path / "suite.md").read_text(encoding="utf-8")


def test_a_part_that_is_ended_leaves_no_temporary_files(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    text = "import tempfile, signal\nwith tempfile.TemporaryDirectory():\n    signal.pause()\n"
    (tmp_path / "code" / "waiting_part.py").write_text(text, encoding="utf-8")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path / 'code'}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    ended = run_parts._end

    def begun_and_ended(process: subprocess.Popen[bytes]) -> None:
        while not any((tmp_path / "temporary").iterdir()):
            assert process.poll() is None
        ended(process)

    monkeypatch.setattr(run_parts, "_end", begun_and_ended)
    parts["waits"] = Part(("waiting_part",), "nothing", limit_s=0.1)
    run_suite(["waits"], tmp_path / "out", lambda _line: None)

    assert not any((tmp_path / "temporary").iterdir())


def test_a_part_that_is_killed_is_told_so(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path / 'code'}")
    (tmp_path / "code").mkdir()
    text = "import os, signal; print('half', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "code" / "killed_part.py").write_text(text, encoding="utf-8")
    parts["killed"] = Part(("killed_part",), "nothing")

    assert run_suite(["killed"], tmp_path / "out", lambda _line: None) == 1

    found = json.loads((tmp_path / "out" / "suite.json").read_text(encoding="utf-8"))["parts"]["killed"]
    assert found["reason"].startswith("killed by SIGKILL: half; see ")


def test_without_matplotlib_a_part_is_measured_without_its_plot(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(benchmark_parts.NEEDS, "plots", (lambda: False, "matplotlib"))
    parts["works"] = Part(("this",), "nothing", plot="json.tool")

    assert run_suite(["works"], tmp_path, lambda _line: None) == 0

    found = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))["parts"]["works"]
    assert (found["state"], found["reason"]) == ("measured", "no plot, which needs matplotlib")


@pytest.mark.usefixtures("parts")
def test_results_are_not_written_among_those_of_another_run(tmp_path: Path) -> None:
    run_suite(["works"], tmp_path / "out", lambda _line: None)

    with pytest.raises(RoboCacheError, match="is not empty; give a new folder"):
        run_suite(["works"], tmp_path / "out", lambda _line: None)
    with pytest.raises(RoboCacheError, match=r"(Not a directory|File exists); give another --out"):
        run_suite(["works"], tmp_path / "out" / "suite.json", lambda _line: None)


def test_a_part_that_the_budget_cuts_short_has_not_failed(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts["waits"] = Part(("http.server", "0", "--bind", "127.0.0.1"), "nothing", limit_s=100.0)
    monkeypatch.setattr(run_parts, "LEAST_S", -math.inf)  # however long this machine takes to begin
    failure = run_parts._failure
    monkeypatch.setattr(run_parts, "_failure", lambda command, *about: failure(command[:6], *about))

    assert run_suite(["waits"], tmp_path, lambda _line: None, budget_s=0.5) == 0

    found = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))["parts"]["waits"]
    assert found["state"] == "cut short"
    assert found["limit_s"] <= 0.5


def test_without_time_left_parts_are_not_run(parts: dict[str, Part], tmp_path: Path) -> None:
    told: list[str] = []
    assert run_suite(["works", "lacks"], tmp_path, told.append, budget_s=1.0) == 0
    found = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))["parts"]
    assert found["works"]["reason"] == "the 1 s are over; run it alone, or with a larger --budget-s"
    assert found["lacks"]["reason"] == "needs a GPU"
    assert len(told) == 2


def test_the_machine_is_described_and_its_work_is_counted() -> None:
    machine = system_state.system()
    assert machine["cores"] >= 1
    assert "torch" in machine["versions"]
    assert system_state.busy_seconds() > 0


@pytest.mark.parametrize(
    ("own", "everything", "apps", "told"),
    [
        (9.0, 10.0, [], []),
        (1.0, 31.0, [], ["other processes used 3.0 cores"]),
        (0.0, 0.0, ["4711"], ["other processes on the GPU: 4711"]),
    ],
)
def test_other_work_on_the_machine_is_a_disturbance(
    own: float, everything: float, apps: list[str], told: list[str]
) -> None:
    assert system_state.disturbances({"gpu_processes": apps}, 10.0, own, everything) == told
