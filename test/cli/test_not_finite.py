"""NaN and infinity in numeric streams: no values, from `info` to the loaders of an export."""

import json

import numpy as np
import pytest
import yaml

from robocache_ros.bags.write import write_bag
from robocache_ros.datasets import open_dataset
from robocache_ros.engine import Ingest
from test.fuzz.messages import header, serialize
from test.fuzz.recordings import MS, START_NS

JOINTS = {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a", "b"]}
BAD = (10, 11, 12, 40)  # numbers of the messages in which joint b has no effort


def joint_state(stamp_ns, effort_b, effort_c):
    """A JointState of a, b and c in CDR; the positions and the effort of a are finite."""
    at = (stamp_ns - START_NS) / 1e9
    values = {"name": ["a", "b", "c"], "position": [at, -at, 0.5], "effort": [2 * at, effort_b, effort_c]}
    return serialize(JOINTS["type"], {"header": header(stamp_ns), **values})


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """Two seconds at 50 Hz: joint c never has an effort, and b has none in `BAD`, once infinite."""
    efforts = [(np.inf if k == 40 else np.nan) if k in BAD else float(k) for k in range(100)]
    times = [START_NS + 20 * k * MS for k in range(100)]
    states = [joint_state(at, effort, np.nan) for at, effort in zip(times, efforts, strict=True)]
    messages = [("/joints", at + MS, state) for at, state in zip(times, states, strict=True)]
    return write_bag(tmp_path_factory.mktemp("bags") / "arm", {"/joints": JOINTS["type"]}, messages)


@pytest.fixture
def written(tmp_path):
    """Writes a spec of a position and of an effort with the given keys."""

    def write(**keys):
        streams = {"position": {**JOINTS, "field": "position"}, "effort": {**JOINTS, "field": "effort", **keys}}
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump({"robocache": 1, "actions": "none", "streams": streams}, sort_keys=False))
        return path

    return write


@pytest.fixture
def export(robocache, bag, tmp_path):
    """Exports with a spec in a format."""
    command = ("export", bag, "--out", tmp_path / "out")
    return lambda spec, name, *more: robocache(*command, "--spec", spec, "--format", name, *more)


def numbers_of(folder, name):
    dataset = open_dataset(name, folder)
    return [dataset[index]["fused"].numpy() for index in range(len(dataset))]


@pytest.mark.parametrize(
    "keys",
    [
        {"align": "hold", "max_age_ms": 10},
        {"align": "nearest", "max_age_ms": 9},
        {"align": "next", "max_age_ms": 9},
        {"align": "linear", "max_gap_ms": 30, "max_age_ms": 0},
        {"align": "window", "samples": 2},
    ],
    ids=lambda keys: keys["align"],
)
def test_a_sample_with_a_nan_is_no_value_whatever_the_alignment(robocache, export, written, tmp_path, keys):
    done = export(written(**keys), "lerobot")
    assert "effort: 4 of 100 messages dropped (4 not_finite)" in done.out
    rows = np.concatenate(numbers_of(tmp_path / "out", "lerobot"))
    assert np.isfinite(rows).all()
    assert len(rows) == 95  # of 99: all but those of `BAD`
    assert not set(BAD) & set(rows[:, 3].round(3).tolist())
    assert robocache("validate", tmp_path / "out").code == 0


def test_a_nan_in_a_joint_that_the_spec_does_not_name_drops_nothing(export, written):
    (recording,) = json.loads(export(written(names=["a"], align="hold"), "lerobot", "--json").out)["recordings"]
    assert recording["frames"] == 99  # the first tick at or after the first arrival is that of sample 1
    assert "dropped" not in recording["streams"]["effort"]["messages"]


@pytest.mark.parametrize("name", ["lerobot", "mcap", "robomimic"])
def test_a_fill_keeps_the_sample_in_every_format(export, written, tmp_path, name):
    done = export(written(align="hold", fill=[0, -1]), name)
    assert "effort: NaN or infinite values of 4 messages filled" in done.out
    (rows,) = numbers_of(tmp_path / "out", name)
    assert np.flatnonzero(rows[:, 3] == -1).tolist() == [k - 1 for k in BAD]  # row 0 is of sample 1
    assert rows[:, 2].tolist() == pytest.approx([0.04 * k for k in range(1, 100)])


def test_samples_that_are_dropped_are_in_the_report(robocache, bag, written, tmp_path):
    robocache("report", bag, "--spec", written(align="hold"), "--out", tmp_path / "report.html")
    assert "effort: 4 messages dropped (4 not_finite)." in (tmp_path / "report.html").read_text()
    (recording,) = json.loads((tmp_path / "report.json").read_text())["recordings"]
    assert recording["streams"]["effort"]["messages"]["dropped:not_finite"] == 4


def test_info_names_the_fields_with_nan(robocache, bag):
    text, reported = robocache("info", bag), json.loads(robocache("info", bag, "--json").out)
    assert "/joints: NaN or infinite in effort of 8 of 8 messages that were looked at;" in " ".join(text.out.split())
    assert reported["recordings"][0]["topics"][0]["not_finite"] == {"effort": 8}


@pytest.mark.parametrize("keys", [{"align": "linear"}, {"align": "window", "samples": 3, "reduce": "mean"}])
def test_a_fill_that_would_be_blended_is_refused(robocache, written, keys):
    done = robocache("check", written(**keys, fill=0))
    assert (done.code, "streams.effort.fill: " in done.err) == (2, True)
    assert "would blend it with measured values; use hold or nearest" in done.err


def test_a_nan_in_an_mcap_export_of_an_earlier_version_is_refused_and_not_read_as_zero(
    export, written, tmp_path, monkeypatch
):
    pushed = Ingest._push_value

    def with_nan(self, stream, sample, arrival_ns):
        value = np.where(sample.value == -1, np.float32(np.nan), sample.value)
        return pushed(self, stream, sample._replace(value=value), arrival_ns)

    monkeypatch.setattr(Ingest, "_push_value", with_nan)
    export(written(align="hold", fill=-1), "mcap", "--jobs", "1")
    with pytest.raises(Exception, match="is not finite"):
        open_dataset("mcap", tmp_path / "out")[0]


def test_an_export_without_values_names_the_nan(export, written):
    done = export(written(names=["c"], align="hold"), "lerobot")
    assert (done.code, "effort: dropped:not_finite (100)" in done.err) == (2, True)
