"""Exports whose recordings are converted by Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import ANY

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.executors import RayTasks, Resources, _check, chosen_executor
from robocache_ros.exporter.job import export
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.pieces import RecordingTask, _MakePieces
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Converted, Event, Started
from robocache_ros.exporter.target import OWN_PIECES, piece_store
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROBOCACHE, Contents, contents
from test.export.sensor_recording import sensor_spec
from test.fleet.bucket.conftest import objects
from test.fleet.ray.conftest import CPUS, ROOT
from test.fleet.s3_server import Bucket


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_makes_the_bytes_of_one_process(
    ray_address: str, recordings: list[Path], undisturbed: Contents, tmp_path: Path, workers: int
) -> None:
    reported: list[Event] = []
    # Little memory: what is free on this machine must not limit the number of tasks.
    executor = chosen_executor("ray", per_task=f"cpus={CPUS // workers},memory=1MB")

    out = export(recordings, sensor_spec(), tmp_path / "set", executor=executor, progress=reported.append).out

    assert contents(out) == undisturbed
    assert [event.jobs for event in reported if isinstance(event, Started)] == [workers]
    assert sum(isinstance(event, Converted) for event in reported) == len(recordings)


def test_a_recording_that_cannot_be_read_is_found_by_its_task(
    ray_address: str, recordings: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.mcap"
    bad.write_bytes(b"no recording")

    with pytest.raises(RoboCacheError) as error:
        export([*recordings, bad], sensor_spec(), tmp_path / "set", executor="ray")

    first, last = str(error.value).splitlines()
    assert "bad.mcap" in first
    assert "1 of 6 recordings failed; the others are kept" in last
    assert piece_store(tmp_path / "set").count() == 5


def command(recordings: list[Path], tmp_path: Path, *more: str) -> list[str]:
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(sensor_spec().to_dict()))
    arguments = [
        "export",
        *map(str, recordings),
        "--spec",
        str(spec),
        "--out",
        str(tmp_path / "set"),
        "--executor",
        "ray",
    ]
    return [*ROBOCACHE, *arguments, *more]


def test_the_command_connects_to_a_cluster_and_prints_its_document_only(
    ray_address: str, recordings: list[Path], undisturbed: Contents, tmp_path: Path
) -> None:
    done = subprocess.run(
        command(recordings, tmp_path, "--json", "--address", ray_address),
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["episodes"] > 0
    assert contents(tmp_path / "set") == undisturbed


def test_a_dataset_in_a_bucket_has_the_bytes_of_a_local_one(
    s3: Bucket, recordings: list[Path], undisturbed: Contents, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs ray (the fleet extra)")
    done = subprocess.run(  # with a Ray of its own, whose workers have the environment of the bucket
        [*command(recordings, tmp_path), "--out", f"{s3.url}/set"],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **s3.env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert objects(s3, "set/") == undisturbed


def test_ray_appends_the_files_of_one_process(ray_address: str, recordings: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="needs deltalake (the fleet extra)")
    options, found = DatasetOptions(formats=("delta",), media="none"), []
    for name in ("local", "ray"):
        for some in (recordings[:1], recordings[1:]):
            export(some, sensor_spec(), tmp_path / name, options, append=True, executor=name)
        files = contents(tmp_path / name)
        found.append({file: files[file] for file in files if file.endswith((".parquet", "robocache.json"))})
    assert len(found[0]) > 4
    assert found[1] == found[0]


def test_a_machine_without_the_folder_of_the_dataset_is_named(recordings: list[Path], tmp_path: Path) -> None:
    work = _MakePieces({}, PieceStore(tmp_path / "elsewhere" / "pieces"), False)
    task = RecordingTask("lift", 0, Resources(), PlannedRecording(recordings[0]), ())
    with pytest.raises(RoboCacheError, match="elsewhere: is not on this machine; use a bucket, or a shared folder"):
        work(task, print)


def of_session(folder: Path) -> list[str]:
    """The processes of a Ray whose files are in a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/ray-" in line:
            found.append(line.replace("\0", " "))
    return found


def test_ctrl_c_ends_a_ray_that_was_started_and_keeps_the_pieces(recordings: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ray (the fleet extra)")
    out = tmp_path / "set"
    folder = Path(tempfile.mkdtemp(prefix="t"))  # short: its path is in the names of sockets
    program = ROOT / "test" / "export" / "interrupted_export.py"
    _python, _option, _code, *arguments = command(recordings, tmp_path)
    done = subprocess.run(
        [sys.executable, str(program), "Converted", str(signal.SIGINT.value), *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (130, "")
    ours = [line for line in done.stderr.splitlines() if not line.startswith("[")]  # Ray logs that a machine is slow
    assert [line.partition("; ")[0] for line in ours] == ["robocache: stopped"], done.stderr
    assert of_session(folder) == []
    folder.rmdir()  # it is empty
    assert [entry.name for entry in out.iterdir()] == [OWN_PIECES]
    # A task that is killed while it puts its piece leaves an attempt, which nothing reads.
    assert not list((out / OWN_PIECES).glob("draft-*"))
    assert piece_store(out).count() > 0


def test_a_cluster_that_does_not_answer_is_one_line(recordings: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs ray (the fleet extra)")
    done = subprocess.run(
        command(recordings, tmp_path, "--address", "127.0.0.1:1"), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "address: 127.0.0.1:1: no Ray answers" in line
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("address", ["127.0.0.1", "head:port"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(RoboCacheError) as error:
        _check(address)
    assert str(error.value) == f"address: {address}: not an address of Ray; give HOST:6379 or auto"


def test_a_target_that_is_taken_is_refused_before_ray_is_started(recordings: list[Path], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "notes.txt").write_text("mine")
    with pytest.raises(RoboCacheError, match="set: exists; choose another folder"):
        export(recordings, sensor_spec(), tmp_path / "set", executor=RayTasks("127.0.0.1:1"))


def test_killed_workers_and_a_killed_driver_change_no_byte(
    ray_address: str, recordings: list[Path], undisturbed: Contents, tmp_path: Path
) -> None:
    spec, program = tmp_path / "spec.yaml", Path(__file__).with_name("killed_fleet.py")
    spec.write_text(json.dumps(sensor_spec().to_dict()))
    arguments = [str(program), str(recordings[0].parent), str(spec), str(tmp_path / "set")]
    done = subprocess.run(
        [sys.executable, *arguments, "--workers", "4", "--drivers", "1", "--address", ray_address],
        stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"statuses": [-signal.SIGKILL, 0], "kept": [ANY, 0], "killed": 4}
    assert contents(tmp_path / "set") == undisturbed
