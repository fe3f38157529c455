from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from robocache_ros import __version__
from robocache_ros.spec import load_spec

for module in ("typer", "rich", "rosbags", "pyarrow"):
    pytest.importorskip(module, reason="needs the `cli` and `export` extras")

ROOT = Path(__file__).parents[2]
BAG, SPEC = str(ROOT / "test" / "data" / "panda_lift"), str(ROOT / "config" / "panda_lift.yaml")


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def robocache(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    from robocache_ros.cli import main

    def run(*arguments: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return run


def test_version(robocache: Callable[..., Said]) -> None:
    assert robocache("--version") == (0, f"robocache_ros {__version__}\n", "")


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "robocache_ros", "--version"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == f"robocache_ros {__version__}\n"


def test_help_names_every_command(robocache: Callable[..., Said]) -> None:
    out = robocache("--help").out
    for command in ("info", "export", "report", "check", "schema", "env", "self-test", "play", "demo"):
        assert re.search(rf"\b{command}\b", out)


def test_play_passes_its_arguments_on(robocache: Callable[..., Said]) -> None:
    pytest.importorskip("rclpy", reason="needs the `ros` extra")
    said = robocache("play", "--help")
    assert said.code == 0
    assert "bag_player" in said.out


def test_without_ros_play_says_what_to_install(robocache: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("robocache_ros.nodes")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "rclpy", None)
    said = robocache("play", BAG)
    assert said.code == 2
    assert "pip install 'robocache_ros[ros]'" in said.err


def test_info_shows_topics_types_rates_and_delays(robocache: Callable[..., Said]) -> None:
    said = robocache("info", BAG)
    assert said.code == 0
    row = next(line for line in said.out.splitlines() if "4437" in line)
    assert row.split()[1:] == ["4437", "491.6", "75", "152", "0.4", "/", "7.7"]
    assert "sensor_msgs/PointCloud2" in said.out
    assert "7 joints: position velocity" in said.out
    assert "320x240 jpeg" in said.out


def test_info_does_without_torch() -> None:
    code = f"import sys; from robocache_ros.cli import app; app(['info', {BAG!r}], standalone_mode=False)"
    code += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_the_first_spec_loads_and_exports_at_once(robocache: Callable[..., Said], tmp_path: Path) -> None:
    first = tmp_path / "first.yaml"
    assert robocache("info", BAG, "--write-spec", first).code == 0
    spec = load_spec(first)
    assert spec.delay_ms == 90  # above the 77 ms of the slowest cloud
    assert spec.stream("panda_position").names == tuple(f"panda_joint{k}" for k in range(1, 8))
    assert spec.stream("ee_orientation").align == "slerp"
    assert spec.stream("command").role == "action"
    assert spec.stream("front").rate_hz == 30
    said = robocache("export", BAG, "--spec", first, "--out", tmp_path / "out", "--no-video")
    assert said.code == 0, said.err
    assert (tmp_path / "out" / "meta" / "info.json").exists()


def test_the_first_spec_is_not_written_over(robocache: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    said = robocache("info", BAG, "--write-spec", tmp_path / "mine.yaml")
    assert said.code == 2
    assert "exists" in said.err
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_check_shows_each_streams_slot(robocache: Callable[..., Said]) -> None:
    said = robocache("check", SPEC)
    assert said.code == 0
    assert "48 columns" in said.out
    assert re.search(r"^ *0 to 6 +joint_position", said.out, re.MULTILINE)
    assert re.search(r"^ *23 to 29 +action \(action\)", said.out, re.MULTILINE)


def test_check_of_a_wrong_spec_is_one_line_and_exit_2(robocache: Callable[..., Said], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(SPEC).read_text().replace("align: slerp", "align: slurp"))
    said = robocache("check", wrong)
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "streams.ee_orientation.align: 'slurp' is not one of linear, slerp, angle, hold, nearest" in said.err


def test_schema_is_json(robocache: Callable[..., Said]) -> None:
    schema = json.loads(robocache("schema").out)
    assert "streams" in schema["properties"]


def test_export_says_what_became_of_it(robocache: Callable[..., Said], tmp_path: Path) -> None:
    said = robocache("export", BAG, "-s", SPEC, "-o", tmp_path / "out", "--media", "none", "--task", "lift the cube")
    assert said.code == 0, said.err
    assert "x real time" in said.out
    assert re.search(r"joint_position +98\.2 % +0\.7 % +1\.1 % +4437 +0 +0 +11", said.out)
    assert (tmp_path / "out" / "report.html").exists()
    assert b"lift the cube" in (tmp_path / "out" / "meta" / "tasks.parquet").read_bytes()


def test_export_refuses_a_folder_that_is_there(robocache: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    said = robocache("export", BAG, "-s", SPEC, "-o", tmp_path, "--no-video")
    assert said.code == 2
    assert "exists; choose another folder" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("info", "/nowhere"), "/nowhere: no such recording"),
        (("check", "/nowhere.yaml"), "cannot be read"),
        (("export", BAG, "-s", SPEC, "-o", "/tmp/never", "-f", "zip"), "format: 'zip' is not one of lerobot"),
        (("report", "/nowhere", "-s", SPEC), "/nowhere: no such recording"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    robocache: Callable[..., Said], arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = robocache(*arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_report_is_written_without_a_dataset(robocache: Callable[..., Said], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.html"
    assert robocache("report", BAG, "-s", SPEC, "-o", out, "--visibility", "deployed").code == 0
    assert "what the robot would have seen 100 ms after each tick" in " ".join(out.read_text().split())
