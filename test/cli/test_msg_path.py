"""Recordings without definitions of their messages, which `--msg-path` names."""

import json
import shlex
import sqlite3

import numpy as np
import pyarrow.parquet as pq
import pytest
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec

STATE = "std_msgs/Header header\narm_msgs/Joint[2] joints  # of the arm\n"
JOINT = "float64 MAX=3.0\nfloat64 angle\n"
TEXTS = {"arm_msgs/msg/Joint": JOINT, "arm_msgs/msg/State": STATE}
LOG = "builtin_interfaces/Time stamp\nuint8 level\nstring name\nstring msg\nstring file\nstring function\nuint32 line\n"


@pytest.fixture(scope="session")
def recording(tmp_path_factory):
    """A recording of ROS 2 Humble: a .db3 file without definitions."""
    path = tmp_path_factory.mktemp("old") / "arm"
    store = get_typestore(Stores.LATEST)
    for name, text in TEXTS.items():
        store.register(get_types_from_msg(text, name))
    state, joint = store.types["arm_msgs/msg/State"], store.types["arm_msgs/msg/Joint"]
    header, time = store.types["std_msgs/msg/Header"], store.types["builtin_interfaces/msg/Time"]

    def message(number):
        stamp = time(sec=100 + number // 50, nanosec=number % 50 * 20_000_000)
        joints = np.array([joint(angle=0.0), joint(angle=number / 50)])
        return bytes(store.serialize_cdr(state(header(stamp, "arm"), joints), "arm_msgs/msg/State"))

    messages = [("/state", 100 * 10**9 + number * 20_000_000, message(number)) for number in range(100)]
    write_bag(path, {"/state": "arm_msgs/msg/State"}, messages, storage="sqlite3", definitions=TEXTS)
    with sqlite3.connect(next(path.glob("*.db3"))) as database:
        database.execute("DELETE FROM message_definitions")
    database.close()
    return path


def packages(folder, place, **texts):
    """A folder with the definitions, somewhere in it or, for the last place, in the package itself."""
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name, text in ({"Joint": JOINT, "State": STATE} | texts).items():
        (folder / place / f"{name}.msg").write_text(text)
    return folder / place.partition("/")[0]


@pytest.fixture
def spec(tmp_path):
    return written_spec(tmp_path / "arm.yaml", "/state", "arm_msgs/msg/State", field="joints[1].angle", align="linear")


def written_spec(path, topic, kind, **keys):
    streams = {"angle": {"topic": topic, "type": kind, "dim": 1, "max_age_ms": 5000, **keys}}
    spec = {"robocache": 1, "actions": "none", "rate_hz": 50, "delay_ms": 100, "streams": streams}
    path.write_text(json.dumps(spec))
    return path


def exported(out):
    """(T,) the values of the only stream."""
    (file,) = (out / "data").rglob("*.parquet")
    return np.array(pq.read_table(file)["observation.state"].to_pylist(), np.float32).reshape(-1)


def test_the_error_for_a_type_without_definition_names_the_option(robocache, recording, spec, tmp_path):
    for code, *command in ((1, "check", spec, recording), (2, "export", recording, "-s", spec, "-o", tmp_path / "out")):
        reported = robocache(*command)
        assert reported.code == code
        assert "no definition of arm_msgs/msg/State; give its .msg file with --msg-path DIR" in reported.err


def test_definitions_from_a_folder_give_a_first_spec_and_a_dataset(robocache, recording, spec, tmp_path):
    for number, place in enumerate(("src/arm/arm_msgs/msg", "install/arm_msgs/share/arm_msgs/msg", "arm_msgs/msg")):
        found = packages(tmp_path / str(number), place)
        assert robocache("check", spec, recording, "--msg-path", found).code == 0
    source, first, out = packages(tmp_path, "src/arm_msgs/msg"), tmp_path / "first.yaml", tmp_path / "out"
    reported = robocache("info", recording, "--msg-path", source, "--write-spec", first)
    assert "arm_msgs/msg/State: not defined in the recording; read with" in reported.out
    assert shlex.split(reported.out)[-2:] == ["--msg-path", str(source)]
    assert "/state" in {stream.topic for stream in load_spec(first).streams}
    assert robocache("export", recording, "-s", spec, "--out", out, "--msg-path", source).code == 0
    values = exported(out)
    assert len(values) > 90
    assert np.array_equal(values, (np.arange(len(values)) / 50).astype(np.float32))
    (used,) = json.loads((out / "meta" / "robocache.json").read_text())["recordings"]
    assert any("State.msg" in note for note in used["notes"])


def test_a_piece_of_another_definition_is_not_used_again(robocache, recording, spec, tmp_path):
    rows = []
    for out, joint in ((tmp_path / "0", JOINT), (tmp_path / "1", "int64 angle\n")):
        source = packages(tmp_path, "src/arm_msgs/msg", Joint=joint)
        kept = ["--msg-path", source, "--pieces", tmp_path / "pieces", "--out", out]
        assert robocache("export", recording, "-s", spec, *kept).code == 0
        rows.append(exported(out)[-1])
    assert rows[0] < 10 < rows[1]


def test_the_log_of_a_real_recording_is_exported_with_its_definition(robocache, real, tmp_path):
    (tmp_path / "rcl_interfaces" / "msg").mkdir(parents=True)
    (tmp_path / "rcl_interfaces" / "msg" / "Log.msg").write_text(LOG)
    keys = {"field": "level", "align": "hold", "stamp": "receive"}
    spec = written_spec(tmp_path / "log.yaml", "/rosout", "rcl_interfaces/msg/Log", **keys)
    bag, out = real / "husky_ur_sim", tmp_path / "out"
    assert "no definition of rcl_interfaces/msg/Log" in robocache("check", spec, bag).err
    assert robocache("export", bag, "-s", spec, "--out", out, "--msg-path", tmp_path).code == 0
    assert set(exported(out)) <= {20.0, 30.0, 40.0}  # info, warn, error
