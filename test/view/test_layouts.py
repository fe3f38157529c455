"""Layouts of Foxglove, PlotJuggler and RViz, which name topics and columns that a fusion node publishes."""

import inspect
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from robocache_ros.bags.reader import Bag
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.view.layouts import foxglove, plotjuggler
from test.cli.conftest import BAG, SPEC

CONFIG = Path(SPEC).parent
TYPES = {  # kinds of panels, by their names in foxglove-sdk
    "Image": "Image",
    "3D": "ThreeDee",
    "Plot": "Plot",
    "StateTransitions": "StateTransitions",
    "DiagnosticSummary": "DiagnosticsSummary",
}


@pytest.fixture(scope="module")
def spec():
    return load_spec(SPEC)


def panels(layout):
    """Yield the panels in the tree of a layout."""
    if isinstance(layout, str):
        yield layout
    else:
        assert set(layout) == {"direction", "first", "second", "splitPercentage"}
        assert layout["direction"] in ("row", "column")
        assert 0 < layout["splitPercentage"] < 100
        yield from panels(layout["first"])
        yield from panels(layout["second"])


def test_every_panel_is_in_the_layout_once(spec):
    layout = foxglove(spec)
    assert sorted(panels(layout["layout"])) == sorted(layout["configById"])
    assert {name.partition("!")[0] for name in layout["configById"]} == set(TYPES)


def test_without_cameras_and_poses_the_plots_are_the_whole_layout(tmp_path):
    path = tmp_path / "robot.yaml"
    path.write_text("robocache: 1\nstreams: {q: {topic: /q, type: std_msgs/msg/Float64MultiArray, dim: 2}}")
    layout = foxglove(load_spec(path))

    assert sorted(panels(layout["layout"])) == sorted(layout["configById"])
    assert layout["layout"]["first"] == "Plot!q"


def test_a_plot_has_the_columns_of_its_stream_with_their_names(spec):
    names = [each.name for each in Layout(spec).plotted]
    paths = foxglove(spec)["configById"]["Plot!gripper"]["paths"]

    for path in paths:
        index = int(path["value"].removeprefix("/fusion_node/plot.position[").removesuffix("]"))
        assert names[index] == f"gripper.{path['label']}"
    assert [path["label"] for path in paths] == ["panda_finger_joint1", "panda_finger_joint2"]


def test_topics_of_the_panels_are_those_of_the_spec_and_the_node(spec):
    found = foxglove(spec)["configById"]
    assert found["Image!front"]["imageMode"]["imageTopic"] == "/camera/front/image_raw/compressed"
    assert set(found["3D!scene"]["topics"]) == {
        *("/fusion_node/voxels/aligned", "/camera/front/points", "/panda/ee_pose")
    }


def test_foxglove_knows_the_settings_of_the_panels(spec):
    layouts = pytest.importorskip("foxglove.layouts")
    for name, config in foxglove(spec)["configById"].items():
        kind = TYPES[name.partition("!")[0]]
        known = getattr(layouts, f"{kind}Config")
        names = {_camel(each) for each in inspect.signature(known).parameters}
        assert set(config) - {"foxglovePanelTitle", "imageMode", "followTf"} <= names, name
        for path in config.get("paths", ()):
            series = layouts.PlotSeries if kind == "Plot" else layouts.StateTransitionsSeries
            assert set(path) <= {_camel(each) for each in inspect.signature(series).parameters}


def _camel(name):
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)


def test_the_command_writes_a_layout_without_a_viewer(robocache, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    done = robocache("view", BAG, "--spec", SPEC, "--foxglove", tmp_path / "layout.json")
    assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "layout.json").read_text()) == foxglove(load_spec(SPEC))

    again = robocache("view", BAG, "--spec", SPEC, "--foxglove", tmp_path / "layout.json")
    assert (again.code, "exists; choose another file" in again.err) == (2, True)


def test_without_rerun_the_command_names_its_extra(robocache, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    done = robocache("view", BAG, "--save", tmp_path / "x.rrd")
    assert done.code == 2
    assert "pip install 'robocache_ros[view]'" in done.err


def test_two_outputs_are_refused(robocache, tmp_path):
    done = robocache("view", BAG, "--web", "--save", tmp_path / "x.rrd")
    assert (done.code, "exclude each other" in done.err) == (2, True)


def test_the_layout_of_plotjuggler_in_config_is_current_and_names_what_is_published(spec):
    text = (CONFIG / "plotjuggler_panda.xml").read_text()
    assert text == plotjuggler(spec), "robocache view BAG --spec config/panda_lift.yaml --plotjuggler FILE writes it"

    curves = [curve.get("name", "") for curve in ElementTree.fromstring(text).iter("curve")]
    assert curves == [f"/fusion_node/plot/{each.name}/position" for each in Layout(spec).plotted]


def test_rviz_shows_topics_of_the_node_and_of_the_recording(spec):
    rviz = yaml.safe_load((CONFIG / "robocache.rviz").read_text())["Visualization Manager"]
    topics = {d["Topic"]["Value"]: d for d in rviz["Displays"] if "Topic" in d}
    published = {f"/fusion_node/{stream.name}/aligned" for stream in spec.media}
    with Bag(BAG) as bag:
        assert set(topics) == published | {"/camera/front/points", "/panda/ee_pose"}
        assert set(topics) - published <= set(bag.topics)
        cloud = bag.topics["/camera/front/points"]
        first = next(bag.messages([cloud.name]))
        frame = read_message(message_type(cloud.type, bag.definitions), first.data).header.frame_id
    assert rviz["Global Options"]["Fixed Frame"] == frame
    assert topics["/fusion_node/voxels/aligned"]["Class"] == "rviz_default_plugins/PointCloud2"
    assert topics["/panda/ee_pose"]["Class"] == "rviz_default_plugins/Pose"
