"""`robocache view`: what a recording of Rerun contains of recordings, runs and datasets. Needs the `view` extra."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rerun")
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.decode import make_decoder
from robocache_ros.spec import load_spec
from robocache_ros.units import NS_PER_S
from test.cli.conftest import BAG, SPEC
from test.fuzz.datasets import write_rlds
from test.fuzz.messages import serialize

FIRST_S, LAST_S = 3.7, 4.5  # around the gap of the joints


class Seen:
    """What a recording of Rerun has, by entity: times in ns, and the column of a component."""

    def __init__(self, path):
        from rerun.chunk import RrdReader

        self.reader = RrdReader(path)
        self._batches: defaultdict[str, list[Any]] = defaultdict(list)
        for chunk in self.reader.stream():
            self._batches[chunk.entity_path].append(chunk.to_record_batch())

    @property
    def entities(self):
        return set(self._batches)

    def column(self, entity, component):
        return [value for batch in self._with(entity, component) for value in batch.column(component).to_pylist()]

    def times_ns(self, entity, component, timeline="time"):
        parts = [batch.column(timeline).cast("int64").to_numpy() for batch in self._with(entity, component)]
        return np.concatenate(parts)

    def scalars(self, entity):
        return np.array(self.column(entity, "Scalars:scalars"))

    def layout(self, component):
        """The values of a component in the blueprint."""
        (blueprint,) = self.reader.blueprints()
        batches = [chunk.to_record_batch() for chunk in self.reader.stream(store=blueprint)]
        columns = [batch.column(component) for batch in batches if component in batch.schema.names]
        return [value for column in columns for each in column.to_pylist() for value in each or ()]

    def _with(self, entity, component):
        return [batch for batch in self._batches[entity] if component in batch.schema.names]


@pytest.fixture(scope="module")
def spec():
    return load_spec(SPEC)


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """Run the command in this process; return what it wrote."""

    def run(*arguments):
        from typer.testing import CliRunner

        from robocache_ros.cli.commands import app

        out = tmp_path_factory.mktemp("view") / "seen.rrd"
        done = CliRunner().invoke(app, ["view", *map(str, arguments), "--save", str(out)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return Seen(out)

    return run


@pytest.fixture(scope="module")
def seen(view):
    return view(BAG, "--spec", SPEC, "--from", FIRST_S, "--to", LAST_S)


@pytest.fixture(scope="module")
def frames(spec):
    """The ticks, and their rows, that the engine computes for the same part."""
    with Bag(BAG) as bag:
        first, last = (bag.start_ns + round(s * NS_PER_S) for s in (FIRST_S, LAST_S))
        run = BagRun(bag, spec, trim=False, start_ns=first, stop_ns=last, media=False)
        parts = [(part.ticks_ns, part.rows().numpy()) for part in run.frames()]
    return np.concatenate([ticks for ticks, _ in parts]), np.concatenate([rows for _, rows in parts])


def test_the_fused_values_are_those_of_the_engine_and_missing_where_they_are_invalid(seen, frames, spec):
    ticks, rows = frames
    valid = rows[:, sum(s.width for s in spec.vectors)]
    shown = seen.scalars("/streams/joint_position/fused")

    np.testing.assert_array_equal(seen.times_ns("/streams/joint_position/fused", "Scalars:scalars"), ticks)
    np.testing.assert_array_equal(shown, np.where(valid[:, None] > 0, rows[:, :7], np.nan))
    assert 0 < np.isnan(shown).any(axis=1).sum() < 10


def test_raw_samples_have_their_own_stamps(seen, spec):
    gripper = spec.stream("gripper")
    with Bag(BAG) as bag:
        decoder = make_decoder(gripper, bag.definitions)
        stamps = {decoder.decode_cdr(m.data).stamp_ns: m for m in bag.messages([gripper.topic])}
    times = seen.times_ns("/streams/gripper/samples", "Scalars:scalars").tolist()

    assert len(times) > 40
    assert set(times) <= set(stamps)
    first = decoder.decode_cdr(stamps[times[0]].data).value
    np.testing.assert_array_equal(seen.scalars("/streams/gripper/samples")[0], first)


def test_the_strip_of_validity_has_the_gap(seen):
    states = [state[0] for state in seen.column("/validity/joint_position", "StateChange:state")]
    assert states == ["aligned", "held", "invalid", "aligned"]
    assert [each[0] for each in seen.column("/validity/front", "StateChange:state")] == ["aligned"]


def test_a_jpeg_is_shown_as_it_was_recorded(seen, spec):
    with Bag(BAG) as bag:
        decoder = make_decoder(spec.stream("front"), bag.definitions)
        files = {bytes(decoder.decode_cdr(m.data).value.data) for m in bag.messages([spec.stream("front").topic])}  # type: ignore[union-attr]
    shown = [bytes(blob[0]) for blob in seen.column("/cameras/front", "EncodedImage:blob")]

    assert len(shown) > 20
    assert set(shown) <= files


def test_a_raw_image_becomes_a_small_jpeg(seen):
    import io

    from PIL import Image

    blob = bytes(seen.column("/cameras/wrist", "EncodedImage:blob")[0][0])
    picture = Image.open(io.BytesIO(blob))
    assert (picture.format, picture.size) == ("JPEG", (160, 120))


def test_poses_clouds_and_voxels_are_in_space(seen, spec):
    centres = np.array(seen.column("/world/voxels/voxels", "Boxes3D:centers")[0])
    grid = spec.stream("voxels").voxels
    assert grid is not None
    cells = (centres - np.array(grid.origin_m)) / np.array(grid.size_m) - 0.5
    assert len(centres) > 100
    np.testing.assert_allclose(cells, np.rint(cells), atol=1e-3)  # float32 centres of cells
    points = np.array(seen.column("/world/voxels/points", "Points3D:positions")[0])
    assert 100 < len(points) <= 5000
    poses = seen.column("/world/poses/panda_ee_pose_pose", "Transform3D:translation")
    np.testing.assert_array_equal([each[0] for each in poses], seen.scalars("/streams/ee_position/fused"))
    assert "/world/paths/panda_ee_pose_pose" in seen.entities


def test_the_layout_of_the_views_is_in_the_file(seen):
    names = seen.layout("ViewBlueprint:display_name")
    assert {"front", "wrist", "joint_position", "validity", "age (ms)", "sensor of voxels"} <= set(names)


def test_the_eye_looks_at_the_middle_of_the_path_from_outside(seen):
    path = np.array([each[0] for each in seen.column("/world/poses/panda_ee_pose_pose", "Transform3D:translation")])
    (target,), (eye,) = (np.array(seen.layout(f"EyeControls3D:{name}")) for name in ("look_target", "position"))
    low, high = path.min(axis=0), path.max(axis=0)

    np.testing.assert_allclose(target, (low + high) / 2, atol=1e-6)
    assert np.linalg.norm(eye - target) > 1.5 * (high - low).max()


def test_a_spec_is_suggested_if_none_is_given(view):
    found = view(BAG, "--to", "0.5").entities
    assert {"/streams/ee_position/fused", "/streams/panda_command/fused", "/cameras/wrist"} <= found


def test_packets_of_video_are_shown_as_they_were_recorded(view, tmp_path):
    pytest.importorskip("av")
    from test.decode.video_messages import COMPRESSED_VIDEO, compressed_video, packets, pictures

    kind, start_ns = "foxglove_msgs/msg/CompressedVideo", 10**18
    coded = packets(pictures(12))
    stamps = [start_ns + number * 33_000_000 for number in range(len(coded))]
    messages = [("/video", at + 5_000_000, compressed_video(at, p)) for at, p in zip(stamps, coded, strict=True)]
    bag = write_bag(tmp_path / "bag", {"/video": kind}, messages, definitions={kind: COMPRESSED_VIDEO})
    spec = tmp_path / "spec.yaml"
    camera = {"topic": "/video", "type": kind, "align": "hold"}
    spec.write_text(json.dumps({"robocache": 1, "actions": "none", "streams": {"camera": camera}}))

    shown = view(bag, "--spec", spec)

    assert [bytes(sample[0]) for sample in shown.column("/cameras/camera", "VideoStream:sample")] == coded
    assert shown.times_ns("/cameras/camera", "VideoStream:sample").tolist() == stamps


def test_rows_of_a_run_are_those_that_the_node_computed(view, tmp_path):
    from robocache_ros.recorder.run_log import CALLS, RunReader
    from test.recorder.test_run_log import JOINTS, joint_messages, run

    streams = {"joints": {"topic": "/joints", "type": JOINTS, "names": ["a"]}}
    made = load_spec({"robocache": 1, "delay_ms": 20, "actions": "none", "streams": streams})
    run(tmp_path / "run.mcap", made, joint_messages(1))
    reader = RunReader(tmp_path / "run.mcap")
    rows = {t.tick_ns: t.row for r in reader.records() if r.topic == CALLS.name for t in reader.ticks(r.data)}

    shown = view(tmp_path / "run.mcap")

    times = shown.times_ns("/streams/joints/fused", "Scalars:scalars").tolist()
    assert times == list(rows)
    expected = [row[0] if row[1] else np.nan for row in rows.values()]
    np.testing.assert_array_equal(shown.scalars("/streams/joints/fused")[:, 0], expected)
    assert len(shown.scalars("/streams/joints/samples")) > 100


def test_executed_rows_and_chunks_of_a_policy_are_over_their_action(view, tmp_path):
    array, text = "std_msgs/msg/Float32MultiArray", "std_msgs/msg/String"
    start_ns, period_ns = 10**18, 20_000_000

    def labelled(tick_ns, rows):
        dims = [("tick_ns=" + str(tick_ns), len(rows)), ("column", len(rows[0]))]
        dim = [{"label": label, "size": size, "stride": 1} for label, size in dims]
        return serialize(array, {"layout": {"dim": dim, "data_offset": 0}, "data": [v for row in rows for v in row]})

    columns = {"columns": ["action.0", "action.1", "state", "origin", "seam_step"], "states": ["run", "stop"]}
    described = serialize(text, {"data": json.dumps({**columns, "origins": ["", "policy"]})})
    messages = [("/runner/columns", start_ns, described)]
    for tick in range(20):
        at = start_ns + tick * period_ns
        messages.append(("/command", at, serialize(array, {"data": [float(tick), 0.0]})))
        messages.append(("/runner/executed", at, labelled(at, [[tick, -tick, int(tick > 15), 1, 0.5 * (tick == 10)]])))
    messages.append(("/runner/chunk", start_ns + period_ns, labelled(start_ns, [[0, 1], [2, 3], [4, 5]])))
    types = {"/command": array, "/runner/executed": array, "/runner/columns": text, "/runner/chunk": array}
    bag = write_bag(tmp_path / "bag", types, messages, latched=["/runner/columns"])
    spec = tmp_path / "spec.yaml"
    action = {"topic": "/command", "type": array, "dim": 2, "align": "hold", "role": "action"}
    spec.write_text(json.dumps({"robocache": 1, "streams": {"action": action}}))

    shown = view(bag, "--spec", spec)

    executed = shown.scalars("/streams/action/executed")
    np.testing.assert_array_equal(executed[:3], [[0, 0], [1, -1], [2, -2]])
    assert [state[0] for state in shown.column("/events/states/state", "StateChange:state")] == ["run", "stop"]
    assert shown.scalars("/events/numbers/seam_step")[10] == 0.5
    (lane,) = (name for name in shown.entities if name.startswith("/streams/action/chunks/"))
    np.testing.assert_array_equal(shown.scalars(lane), [[0, 1], [2, 3], [4, 5], [np.nan, np.nan]])
    assert np.diff(shown.times_ns(lane, "Scalars:scalars"))[:2].tolist() == [period_ns] * 2


def test_a_run_of_a_policy_shows_what_it_planned_and_sent(view, tmp_path):
    from robocache_ros.engine import tick_grid
    from robocache_ros.recorder.run_log import RunReader
    from test.policy.test_replay import CODE, outputs_of, play

    (tmp_path / "code.py").write_text(CODE)
    play(tmp_path / "run.mcap", f"{tmp_path / 'code.py'}:wave", 1, outputs_of())
    events = list(RunReader(tmp_path / "run.mcap").events())
    steps = {tick_grid.tick_ns(e.facts["tick"], 50): e for e in events if e.name == "step"}
    plans = [e for e in events if e.name in ("reply", "chunk") and len(e.arrays.get("actions", ()))]
    last = max(steps)

    shown = view(tmp_path / "run.mcap")

    times = shown.times_ns("/streams/action/executed", "Scalars:scalars").tolist()
    executed = dict(zip(times, shown.scalars("/streams/action/executed"), strict=True))
    sent = {tick_ns: step.arrays["row"] for tick_ns, step in steps.items() if "row" in step.arrays}
    assert len(sent) > 50
    for tick_ns, row in sent.items():
        np.testing.assert_array_equal(executed[tick_ns], row)
    lanes = [name for name in shown.entities if name.startswith("/streams/action/chunks/")]
    drawn = [tuple(row) for name in lanes for row in shown.scalars(name)]
    assert tuple(plans[0].arrays["actions"][0].tolist()) in drawn
    assert sum(np.isnan(row[0]) for row in drawn) >= 5
    states = [state[0] for state in shown.column("/events/states/state", "StateChange:state")]
    assert states[-1] == steps[last].facts["state"]


def test_episodes_of_a_dataset_follow_each_other(view, tmp_path):
    import robocache_ros

    raw = load_spec(SPEC).to_dict()
    raw["streams"] = {name: raw["streams"][name] for name in ("joint_position", "front", "action")}
    done = robocache_ros.export([BAG], load_spec(raw), tmp_path / "lift", task="lift the cube")
    lengths = [episode.stop - episode.start for one in done.recordings for episode in one.episodes]

    shown = view(tmp_path / "lift")

    entity = "/streams/joint_position/fused"
    times = shown.times_ns(entity, "Scalars:scalars")
    episodes = shown.times_ns(entity, "Scalars:scalars", "episode")
    assert len(lengths) == 2
    assert [np.count_nonzero(episodes == number) for number in (0, 1)] == [length + 1 for length in lengths]
    assert (np.diff(times) > 0).all()
    names = [state[0] for state in shown.column("/events/states/episode", "StateChange:state")]
    assert names == ["0: lift the cube", "1: lift the cube"]
    assert len(shown.column("/cameras/vision/front", "VideoFrameReference:timestamp")) == sum(lengths)
    second = view(tmp_path / "lift", "--from", 1, "--to", 2)
    assert second.column("/events/states/episode", "StateChange:state") == [["1: lift the cube"]]


def test_a_split_of_a_dataset_without_train_is_chosen(view, robocache, tmp_path):
    write_rlds(tmp_path / "arm")
    info = tmp_path / "arm" / "dataset_info.json"
    info.write_text(info.read_text().replace('"train"', '"val"'))
    for file in tmp_path.glob("arm/*-train.*"):
        file.rename(file.with_name(file.name.replace("-train.", "-val.")))

    refused = robocache("view", tmp_path / "arm", "--save", tmp_path / "x.rrd")
    assert (refused.code, "no split train; there are val" in refused.err) == (2, True)
    assert view(tmp_path / "arm", "--split", "val").column("/events/states/episode", "StateChange:state")


def test_a_file_that_cannot_be_written_is_one_line(robocache, tmp_path):
    done = robocache("view", BAG, "--spec", SPEC, "--save", tmp_path / "missing" / "x.rrd")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "cannot be written; choose another folder" in done.err


def test_a_part_that_the_recording_does_not_have_is_refused(robocache, tmp_path):
    done = robocache("view", BAG, "--spec", SPEC, "--from", 100, "--save", tmp_path / "x.rrd")
    assert done.code == 2
    assert "nothing from 100 s to its end; it has 9.0 s" in done.err
    assert not list(tmp_path.iterdir())


def test_a_folder_of_datasets_is_refused_with_the_name_of_one(robocache, tmp_path):
    out = tmp_path / "lift"
    done = robocache("export", BAG, "--spec", SPEC, "--out", out, "-f", "webdataset", "-f", "mcap", "--media", "none")
    assert done.code == 0, done.err

    seen = robocache("view", out, "--save", tmp_path / "a.rrd")
    assert (seen.code, "contains datasets; give one, such as its mcap" in seen.err) == (2, True)
    layout = robocache("view", out / "webdataset", "--foxglove", tmp_path / "a.json")
    assert (layout.code, "is a dataset; give its spec with --spec" in layout.err) == (2, True)
