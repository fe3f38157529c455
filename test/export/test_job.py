"""What an export refuses, warns of and predicts; its devices, and formats of other packages."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import preview as dry_run_module
from robocache_ros.exporter.convert import Conversion
from robocache_ros.exporter.pieces import Checksums, Plan
from robocache_ros.exporter.planned_recording import PlannedRecording, moment, planned
from robocache_ros.exporter.preview import expect, match
from robocache_ros.formats.registry import known_formats
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test import forked
from test.export.conftest import LIFT, NO_MEDIA, ROBOCACHE, ROOT, SPEC, by_share, contents, dry_run, named
from test.export.sensor_recording import engine_rows
from test.exporting import export
from test.shared import installed


@pytest.mark.parametrize(
    ("topics", "message"),
    [((), "no such recording"), ({"/chat": "std_msgs/msg/String"}, "has no topic /panda/joint_states")],
)
def test_a_later_recording_that_is_wrong_is_noticed_first(bags, spec, tmp_path, topics, message):
    other = tmp_path / "other"
    if topics:
        write_bag(other, topics, [("/chat", 1, b"\0\1\0\0\1\0\0\0\0")])
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match=message):
        export([bags[0], other], spec, tmp_path / "set", progress=named(seen))
    assert seen == []
    assert not (tmp_path / "set").exists()


@pytest.mark.timeout(200)
def test_a_pipe_is_refused_and_not_read(spec, tmp_path):
    os.mkfifo(tmp_path / "pipe.mcap")
    with pytest.raises(RoboCacheError, match=r"pipe\.mcap: not a regular file"):
        export([tmp_path / "pipe.mcap"], spec, tmp_path / "set")


@pytest.mark.timeout(60)
def test_an_error_does_not_wait_for_the_checksums(tmp_path):
    with (tmp_path / "large.mcap").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file, which takes hours to hash
    with pytest.raises(KeyboardInterrupt), Checksums(tmp_path / "large.mcap"):
        raise KeyboardInterrupt


SLOW_DISKS = (("300k", "video"), ("1100k", "video"), ("3m", "image"))


@pytest.mark.parametrize(
    ("size", "media"), [("200k", "none"), *(pytest.param(*disk, marks=pytest.mark.slow) for disk in SLOW_DISKS)]
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, small_disk, size, media):
    command = [*ROBOCACHE, "export", LIFT, "--spec", SPEC, "--out", tmp_path / "set", "--media", media]
    code, out, errors = small_disk(tmp_path, size, command, f"ls -A {tmp_path}")
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert "No space left on device; free some space" in errors


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_one_line(tmp_path):
    command = [*ROBOCACHE, "export", LIFT, "--spec", SPEC, "--out", tmp_path / "set", "--media", "image"]
    done = subprocess.run(["prlimit", "--fsize=51200", *command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "File too large; raise the limit on file sizes" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bags": "lift"}, "bags: lift is one path; give a list"),
        ({"bags": []}, "bags: none given"),
        ({"trim": False}, "trim: ticks without values are kept only where on_invalid is mask"),
        ({"min_frames": 1000}, "no 1000 ticks in a row have every stream"),
        ({"overwrit": True}, "overwrit: no such option; did you mean 'overwrite'"),
        ({"device": "npu"}, "is not one of auto, cpu, cuda"),
        ({"jpeg": "gpu", "device": "cpu"}, "jpeg: 'gpu' needs a GPU, and device 'cpu' is the CPU"),
        ({"jobs": 0}, "jobs: 0 is not an integer from 1 to"),
        ({"formats": ("csv",)}, r"'csv' is not one of lerobot, .*diffusion_policy"),
    ],
)
def test_what_an_export_cannot_do_is_refused(bags, spec, tmp_path, given, message):
    with pytest.raises(RoboCacheError, match=message):
        export(**{"bags": bags[:1], "spec": spec, "out": tmp_path / "set", **given})
    assert not (tmp_path / "set").exists()


def test_an_action_that_is_missing_or_rare_is_refused_unless_an_option_allows_it(bags, spec, tmp_path):
    action = replace(spec.stream("action"), max_age_ms=10)
    rare = replace(spec, streams=tuple(action if s.name == "action" else s for s in spec.streams))
    states = replace(spec, streams=tuple(s for s in spec.streams if s.role != "action"))
    cases = [
        (rare, r"ticks have every stream, action in \d+%; give it a larger max_age", rare, {"min_valid": 0.0}),
        (states, "none has role: action, .* or state actions: none", states, {"action": "next-observation"}),
        (states, "none has role: action", replace(states, actions="none"), {}),
    ]
    for number, (refused, message, other, options) in enumerate(cases):
        with pytest.raises(RoboCacheError, match=message):
            export(bags[:1], refused, tmp_path / "set", NO_MEDIA, min_frames=1)
        export(bags[:1], other, tmp_path / str(number), NO_MEDIA, min_frames=1, **options)


def test_ticks_without_values_at_the_ends_are_kept_as_masked(bags, spec, tmp_path):
    made = export(bags[:1], spec, tmp_path / "set", NO_MEDIA, trim=False, on_invalid="mask")
    assert made.frames == len(made.recordings[0].ticks_ns)


def test_progress_ends_at_the_whole_of_each_recording(bags, spec, tmp_path):
    seen: list[tuple[str, float]] = []
    export(bags, spec, tmp_path / "out", NO_MEDIA, progress=by_share(lambda *each: seen.append(each)))
    assert [entry for entry in seen if entry[1] == 1] == [("lift", 1.0), ("again", 1.0)]
    assert all(0 <= share <= 1 for _, share in seen)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("formats", (), "formats: expected at least 1"),
        ("formats", ("lerobot", "lerobot"), "formats: 'lerobot' is in the list twice"),
        ("formats", "lerobot", "formats: 'lerobot' is not a list"),
        ("media", "gif", "media: 'gif' is not one of video, image, none"),
        ("visibility", "all", "visibility: 'all' is not one of ideal, deployed"),
        ("task", " ", "task: is empty"),
        ("task", "lift\nthe cube", r"task: 'lift\\\\nthe cube' is not a line of text"),
        ("task", "\x1b[31m" * 100, "is not a line of text"),
        ("task", "\udcff", "is not a line of text"),
        ("task", "x" * 1001, "task: 1,001 characters; use 1,000 at most"),
        ("robot_type", "a\0b", "robot_type: .* is not a line of text"),
        ("min_frames", 0, "^min_frames: "),
        ("min_valid", 1.5, "^min_valid: "),
        ("on_invalid", "skip", "^on_invalid: "),
    ],
)
def test_options_are_checked(option, value, expected):
    with pytest.raises(RoboCacheError, match=expected):
        DatasetOptions(**{option: value})


def test_a_program_needs_no_guard_around_an_export_by_several_processes(tmp_path):
    for name in ("a", "b"):
        shutil.copytree(LIFT, tmp_path / "recordings" / name)
    script = tmp_path / "convert.py"
    line = "print(export('recordings', sys.argv[1], 'set', jobs=2).frames)"
    script.write_text(f"import sys\nfrom robocache_ros import export\n{line}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forked.run([sys.executable, script, SPEC], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, len(done.stdout.split())) == (0, 1), done.stderr


def test_a_stream_whose_joints_are_missing_is_not_advised_to_hold_longer(bags, spec, tmp_path):
    other = replace(spec.stream("joint_position"), names=tuple(f"other_{n}" for n in range(7)))
    wrong = replace(spec, streams=tuple(other if s.name == other.name else s for s in spec.streams))
    with pytest.raises(RoboCacheError) as error:
        export(bags[:1], wrong, tmp_path / "set", NO_MEDIA)
    assert "joint_missing" in str(error.value)
    assert "; correct the names of joint_position: robocache check lists the joints" in str(error.value)
    assert "max_age_ms" not in str(error.value)


def test_a_recording_that_is_another_one_under_another_name_is_noted(bags, spec, tmp_path):
    copy = Path(shutil.copytree(bags[0], tmp_path / "copy"))
    same = f"{bags[0]} and {copy}: the same files (by SHA-256)"
    note = f"{same}, so the dataset has their episodes 2 times; leave one out"
    done = export([*bags, copy], spec, tmp_path / "set", NO_MEDIA)
    assert [n for n in done.notes if "SHA-256" in n] == [note]
    assert len(done.recordings) == 3
    assert dry_run(planned([*bags, copy]), spec, tmp_path / "dry", NO_MEDIA).notes == (note,)
    other = PlannedRecording(copy, task="another task")
    assert not [n for n in export([bags[0], other], spec, tmp_path / "tasks", NO_MEDIA).notes if "SHA-256" in n]


# What is known of an export before it: what matches, what is expected, and what it costs. Nothing is written.


def test_what_is_expected_is_what_an_export_makes(bags, spec, tmp_path):
    part = PlannedRecording(bags[0], start=moment(0.2), stop=moment(1.2))
    result = export([part], spec.without_cameras(), tmp_path / "set", NO_MEDIA).recordings[0]
    found = expect(part, spec.without_cameras(), NO_MEDIA)
    assert found.problems == ()
    assert found.result
    assert found.result.episodes == result.episodes
    assert np.array_equal(found.result.valid, result.valid)


def test_images_are_expected_without_being_converted(bags, spec):
    found = expect(PlannedRecording(bags[0]), spec)
    assert found.result
    column = [stream.name for stream in spec.streams].index("front")
    assert found.result.valid[found.result.kept, column].all()
    assert not any(found.result.thumbnails.images.values())


GRIPPER = {"topic": "/panda/gripper/joint_states", "type": "sensor_msgs/msg/JointState"}
FRAMES = {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage"}


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (GRIPPER | {"topic": "/panda/gripper/joint_state", "names": ["panda_finger_joint1"]},
         "no topic /panda/gripper/joint_state; did you mean '/panda/gripper"),
        (GRIPPER | {"type": "sensor_msgs/msg/Imu", "field": "orientation"},
         "type: sensor_msgs/msg/JointState in the recording"),
        (GRIPPER | {"names": ["panda_finger_joint1", "none"]},
         "names: no joint none; /panda/gripper/joint_states has panda_fin"),
        (GRIPPER | {"names": ["panda_finger_jont1"]},
         "names: no joint panda_finger_jont1; did you mean 'panda_finger_joint1'?"),
        (FRAMES | {"frames": ["base_link", "tool"]}, "frames: no frame 'tool'; did you mean 'tool0'?"),
    ],
)  # fmt: skip
def test_what_does_not_match_is_named(bags, tmp_path, tf_message, stream, expected):
    recording = bags[0]
    if stream["topic"] == "/tf":
        message = tf_message((10**9, "base_link", "tool0", (0.0, 0.0, 0.0)))
        recording = write_bag(tmp_path / "bag", {"/tf": stream["type"]}, [("/tf", 10**9, message)])
    with Bag(recording) as bag:
        (found,) = match(bag, load_spec({"robocache": 1, "streams": {"one": stream}}))
    assert expected in found.problems[0]


def test_the_estimate_of_a_short_recording_exports_a_second_of_it(spec, tmp_path):
    run = dry_run(planned([LIFT]), spec.without_cameras(), tmp_path / "set", NO_MEDIA)  # of 7.6 s
    assert run.estimate
    assert run.estimate.sample_frames == 50


def test_a_dry_run_counts_and_estimates_and_writes_nothing(bags, spec, tmp_path):
    recordings = planned([*bags, tmp_path / "missing.mcap"])
    run = dry_run(recordings, spec.without_cameras(), tmp_path / "out" / "set", NO_MEDIA, jobs=2)
    assert not (tmp_path / "out").exists()
    assert len(run.accepted) == 2
    assert "no such recording" in run.expected[2].problems[0]
    made = export(bags, spec.without_cameras(), tmp_path / "set", NO_MEDIA)
    size = sum(file.stat().st_size for file in made.out.rglob("*") if file.is_file())
    assert (run.frames, run.episodes) == (made.frames, made.episodes)
    assert run.estimate
    assert run.estimate.jobs == 2
    # The report has figures per recording, and the estimate is from one of the two.
    assert size / 2 < run.estimate.size_bytes < size * 2


def test_a_dry_run_knows_what_an_earlier_export_has_converted(bags, spec, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise RoboCacheError("disk: full; free some space")

    spec = spec.without_cameras()
    with monkeypatch.context() as patched:
        patched.setattr("robocache_ros.exporter.datasets.DatasetPlan._merged", full)
        with pytest.raises(RoboCacheError, match="disk: full"):
            export(bags[:1], spec, tmp_path / "set", NO_MEDIA)
    monkeypatch.setattr(dry_run_module, "_estimate", lambda *_: None)
    run = dry_run(planned(bags), spec, tmp_path / "set", NO_MEDIA)
    assert run.converted == {PlannedRecording(bags[0])}
    changed = dry_run(planned(bags), spec, tmp_path / "set", replace(NO_MEDIA, min_frames=3))
    assert changed.converted == frozenset()


def test_a_dry_run_refuses_what_an_export_refuses(bags, spec, tmp_path):
    (tmp_path / "file").touch()
    for name, message in ((".", "exists; choose another folder"), ("file", "is a file; give a new folder")):
        with pytest.raises(RoboCacheError, match=message):
            dry_run(planned(bags), spec, tmp_path / name)
    found = expect(PlannedRecording(bags[0]), spec.without_cameras(), replace(NO_MEDIA, min_frames=1000))
    assert "no 1000 ticks in a row have every stream" in found.refusal
    assert found.result


# Images and clouds converted on a GPU: the dataset of the CPU.

PROVENANCE = ("meta/robocache.json", "SHA256SUMS")  # which name the device


def data(out: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(out).items() if name not in PROVENANCE}


def provenance(out: Path) -> str:
    return str(json.loads((out / PROVENANCE[0]).read_text(encoding="utf-8"))["device"])


def test_a_piece_does_not_depend_on_the_device_unless_nvjpeg_decodes(spec, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    recording = PlannedRecording(LIFT)
    on_cpu = Plan((recording,), spec, DatasetOptions(), {})
    nvjpeg = replace(on_cpu, options=DatasetOptions(jpeg="gpu"), device="cuda:0")
    plans = (on_cpu, replace(on_cpu, device="cuda:0"), nvjpeg, replace(nvjpeg, device="cuda:1"))
    keys = [plan.key(recording, []) for plan in plans]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_too_little_gpu_memory_is_one_line(bags, spec, tmp_path, monkeypatch):
    def full(*_arguments: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Conversion, "run", full)
    with pytest.raises(RoboCacheError, match=r"lift: not enough GPU memory; use fewer --jobs, or --device cpu"):
        export(bags[:1], spec, tmp_path / "set")


@pytest.mark.gpu
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_dataset_made_on_a_gpu_has_the_bits_of_the_cpu(spec, tmp_path, jobs):
    """Of a recording with images, which are resized, and clouds, which become voxels."""
    assert {stream.kind for stream in spec.media} == {"image", "cloud"}
    options, bags = DatasetOptions(media="image"), [LIFT] * jobs
    cpu = export(bags, spec, tmp_path / "a" / "set", options, jobs=jobs).out
    cuda = export(bags, spec, tmp_path / "b" / "set", options, jobs=jobs, device="cuda").out
    assert data(cuda) == data(cpu)
    assert provenance(cpu) == "cpu"
    assert provenance(cuda).startswith("cuda:0 (")


@pytest.mark.gpu
def test_pieces_of_the_cpu_are_reused_on_a_gpu(spec, tmp_path):
    options, seen = DatasetOptions(media="none"), list[str]()
    export([LIFT], spec, tmp_path / "a", options, pieces=tmp_path / "pieces")
    export([LIFT], spec, tmp_path / "b", options, pieces=tmp_path / "pieces", device="auto", progress=named(seen))
    assert seen == []


@pytest.mark.gpu
def test_the_provenance_of_nvjpeg_says_that_pixels_may_differ(spec, tmp_path):
    pytest.importorskip("torchvision")
    out = export([LIFT], spec, tmp_path / "set", DatasetOptions(jpeg="gpu"), device="cuda").out
    assert "jpeg decoded by nvJPEG on " in provenance(out)
    assert provenance(out).endswith("whose pixels may differ")


# A dataset format of another package, found through its entry point.


@pytest.fixture
def site(tmp_path) -> Path:
    """The folder of the package."""
    module = Path(__file__).with_name("csv_format.py")
    return installed(tmp_path / "site", module, "[robocache_ros.formats]\ncsv = csv_format:CSV\n")


def test_the_command_line_writes_it(site, bags, spec, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "robocache_ros", "export", *bags, "--spec", SPEC, "--format", "csv", "--out", out]
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    given = {"preload": forked.EXPORT, "capture_output": True, "text": True, "env": environment, "cwd": ROOT}
    done = forked.run([*map(str, command), "--jobs", "2"], **given)
    assert done.returncode == 0, done.stderr
    rows = list(csv.reader((out / "episodes" / "episode_000000.csv").read_text().splitlines()))
    engine = engine_rows(bags[0], spec)
    stored = np.array([row[1:] for row in rows[1:]], np.float64).astype(np.float32)
    places = np.searchsorted(engine["tick_ns"], [int(row[0]) for row in rows[1:]])
    streams = [s.name for role in ("observation", "action") for s in spec.vectors if s.role == role]
    assert np.array_equal(stored, np.concatenate([engine[name][places] for name in streams], axis=1))


def test_its_own_refusals_come_before_a_recording_is_read(site, tmp_path, spec, monkeypatch):
    monkeypatch.syspath_prepend(site)
    assert known_formats()[-1] == "csv"
    cameras = replace(spec, actions="none", streams=tuple(s for s in spec.streams if s.kind == "image"))
    with pytest.raises(RoboCacheError, match="csv stores vectors"):
        export([tmp_path / "no_recording"], cameras, tmp_path / "out", DatasetOptions(formats=("csv",)))
