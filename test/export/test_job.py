from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.exporter.pieces import Checksums
from robocache_ros.exporter.planned_recording import PlannedRecording, planned
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROBOCACHE, by_share, dry_run, named

ROOT = Path(__file__).parents[2]
LIFT = ROOT / "test" / "data" / "panda_lift"
SPEC = ROOT / "config" / "panda_lift.yaml"


def command(out: Path, *more: str) -> list[str]:
    return [*ROBOCACHE, "export", str(LIFT), "--spec", str(SPEC), "--out", str(out), *more]


def test_a_later_recording_that_is_wrong_is_noticed_first(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match="no such recording"):
        export([bags[0], tmp_path / "gone"], spec, tmp_path / "set", progress=named(seen))
    assert seen == []
    assert list(tmp_path.iterdir()) == []


def test_a_later_recording_without_a_topic_is_noticed_first(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    other = write_bag(tmp_path / "other", {"/chat": "std_msgs/msg/String"}, [("/chat", 1, b"\0\1\0\0\1\0\0\0\0")])
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match="has no topic /panda/joint_states"):
        export([bags[0], other], spec, tmp_path / "set", progress=named(seen))
    assert seen == []


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_read(spec: FusionSpec, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mcap")
    with pytest.raises(RoboCacheError, match=r"pipe\.mcap: not a regular file"):
        export([tmp_path / "pipe.mcap"], spec, tmp_path / "set")


def test_a_recording_that_changes_while_it_is_read_is_refused(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    growing = shutil.copytree(bags[0], tmp_path / "growing")
    file = next(growing.glob("*.mcap"))

    def touched(_: str, share: float) -> None:
        if share == 1:
            os.utime(file, ns=(0, 0))

    with pytest.raises(RoboCacheError, match=r"\.mcap: changed while it was read"):
        export([growing], spec, tmp_path / "set", DatasetOptions(media="none"), progress=by_share(touched))
    assert list(tmp_path.iterdir()) == [growing]


@pytest.mark.timeout(60)
def test_an_error_does_not_wait_for_the_checksums(tmp_path: Path) -> None:
    with (tmp_path / "large.mcap").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file, which takes hours to hash
    with pytest.raises(KeyboardInterrupt), Checksums(tmp_path / "large.mcap"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("size", "media"),
    [
        ("200k", "none"),
        pytest.param("300k", "video", marks=pytest.mark.slow),
        pytest.param("1100k", "video", marks=pytest.mark.slow),
        pytest.param("3m", "image", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, small_disk: Callable[..., tuple[int, str, str]], size: str, media: str
) -> None:
    code, out, errors = small_disk(tmp_path, size, command(tmp_path / "set", "--media", media), f"ls -A {tmp_path}")
    assert (code, out) == (2, "")
    assert errors.count("\n") == 1
    assert "No space left on device; free some space" in errors


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_one_line(tmp_path: Path) -> None:
    line = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *command(tmp_path / "set", "--media", "image")]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "File too large; raise the limit on file sizes" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_one_path_is_not_a_list_of_recordings(spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="bags: lift is one path; give a list"):
        export("lift", spec, tmp_path / "set")


def test_a_recording_that_spans_no_tick_is_refused(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    topic = "/panda/joint_states"
    joint = replace(spec, actions="none", streams=tuple(s for s in spec.streams if s.name == "joint_position"))
    with Bag(bags[0]) as bag:
        first = next(m for m in bag.messages([topic]))
    short = write_bag(
        tmp_path / "short", {topic: bag.topics[topic].type}, [(topic, 1_760_000_000_000_000_001, first.data)]
    )
    with pytest.raises(RoboCacheError, match="without a tick"):
        export([short], joint, tmp_path / "set", DatasetOptions())


def test_a_dataset_without_actions_is_refused(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    states = replace(spec, streams=tuple(s for s in spec.streams if s.role != "action"))
    with pytest.raises(RoboCacheError, match=r"none has role: action, .* or state actions: none"):
        export(bags, states, tmp_path / "set", DatasetOptions(media="none"))

    export(bags[:1], states, tmp_path / "next", DatasetOptions(media="none", action="next-observation"))
    export(bags[:1], replace(states, actions="none"), tmp_path / "none", DatasetOptions(media="none"))


def test_no_recording_is_an_error(spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="bags: none given"):
        export([], spec, tmp_path / "out")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"formats": ()}, "formats: expected at least 1"),
        ({"formats": ("lerobot", "lerobot")}, "formats: 'lerobot' is in the list twice"),
        ({"formats": "lerobot"}, "formats: 'lerobot' is not a list"),
        ({"media": "gif"}, "media: 'gif' is not one of video, image, none"),
        ({"visibility": "all"}, "visibility: 'all' is not one of ideal, deployed"),
        ({"task": " "}, "task: is empty"),
        ({"task": "lift\nthe cube"}, r"task: 'lift\\\\nthe cube' is not a line of text"),
        ({"task": "\x1b[31m" * 100}, "is not a line of text"),
        ({"task": "\udcff"}, "is not a line of text"),
        ({"task": "x" * 1001}, "task: 1,001 characters; use 1,000 at most"),
        ({"robot_type": "a\0b"}, "robot_type: .* is not a line of text"),
    ],
)
def test_options_are_checked(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(RoboCacheError, match=expected):
        DatasetOptions(**keys)


def test_progress_ends_at_the_whole_of_each_recording(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    export(
        bags,
        spec,
        tmp_path / "out",
        DatasetOptions(media="none"),
        progress=by_share(lambda name, share: seen.append((name, share))),
    )
    assert [entry for entry in seen if entry[1] == 1] == [("lift", 1.0), ("again", 1.0)]
    assert all(0 <= share <= 1 for _, share in seen)


def test_a_recording_with_too_few_complete_ticks_is_refused(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    sparse = replace(spec.stream("action"), max_age_ms=10)
    rare = replace(spec, streams=tuple(sparse if s.name == "action" else s for s in spec.streams))
    options = DatasetOptions(media="none", min_frames=1)
    with pytest.raises(RoboCacheError, match=r"ticks have every stream, action in \d+%; give it a larger max_age"):
        export(bags[:1], rare, tmp_path / "set", options)

    export(bags[:1], rare, tmp_path / "set", replace(options, min_valid=0.0))


def test_a_stream_whose_joints_are_missing_is_not_advised_to_hold_longer(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    other = replace(spec.stream("joint_position"), names=tuple(f"other_{n}" for n in range(7)))
    wrong = replace(spec, streams=tuple(other if s.name == other.name else s for s in spec.streams))
    with pytest.raises(RoboCacheError) as error:
        export(bags[:1], wrong, tmp_path / "set", DatasetOptions(media="none"))
    assert "joint_missing" in str(error.value)
    assert "; correct the names of joint_position: robocache check lists the joints" in str(error.value)
    assert "max_age_ms" not in str(error.value)


def test_a_recording_that_is_another_one_under_another_name_is_noted(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(bags[0], tmp_path / "copy"))
    note = (
        f"{bags[0]} and {copy}: the same files (by SHA-256), so the dataset has their episodes 2 times; leave one out"
    )
    options = DatasetOptions(media="none")
    done = export([*bags, copy], spec, tmp_path / "set", options)
    assert [n for n in done.notes if "SHA-256" in n] == [note]
    assert len(done.recordings) == 3
    assert dry_run(planned([*bags, copy]), spec, tmp_path / "dry", options).notes == (note,)
    other = PlannedRecording(copy, task="another task")
    assert not [n for n in export([bags[0], other], spec, tmp_path / "tasks", options).notes if "SHA-256" in n]


def test_ticks_without_values_at_the_ends_are_kept_only_as_masked(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    with pytest.raises(RoboCacheError, match="trim: ticks without values are kept only where on_invalid is mask"):
        export(bags[:1], spec, tmp_path / "set", DatasetOptions(trim=False))
    made = export(bags[:1], spec, tmp_path / "set", DatasetOptions(media="none", trim=False, on_invalid="mask"))
    assert made.frames == len(made.recordings[0].ticks_ns)


@pytest.mark.parametrize(("option", "value"), [("min_frames", 0), ("min_valid", 1.5), ("on_invalid", "skip")])
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(RoboCacheError, match=f"^{option}: "):
        DatasetOptions(**{option: value})  # type: ignore[arg-type]
