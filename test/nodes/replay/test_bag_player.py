"""The bag player: its pace, its bytes, and its errors."""

from __future__ import annotations

import signal
import threading

import pytest
import rclpy
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.srv import ListParameters
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float32MultiArray, Float64MultiArray, String

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import mcap
from robocache_ros.bags.write import write_bag
from robocache_ros.nodes import bag_player, middleware
from robocache_ros.nodes.bag_player import BagPlayer, Options
from robocache_ros.nodes.frame_messages import read_fused
from robocache_ros.spec import load_spec
from test.fuzz.messages import serialize
from test.fuzz.recordings import make
from test.nodes.rig import PANDA, PATIENCE_S, ROOT, until

MS = 1_000_000
TEXT = serialize("std_msgs/msg/String", {"data": "map"})


def test_bytes_are_published_unchanged_with_a_clock_over_their_span(rig):
    clock, poses = rig.listen(Clock, "/clock"), rig.listen(PoseStamped, "/panda/ee_pose")
    played = rig.play(topics=("/panda/ee_pose",), start_s=1.0, duration_s=0.5, rate=4.0)
    with Bag(PANDA) as bag:
        first_ns = bag.start_ns + 1000 * MS
        expected = [m.data for m in bag.messages({"/panda/ee_pose"}, first_ns, first_ns + 500 * MS)]
    until(lambda: len(poses) == played.messages, "the messages")
    assert poses.raw == expected
    until(lambda: len(clock) and _ns(clock.newest) >= first_ns + 490 * MS, "the end")
    times = [_ns(message) for message in clock.messages]
    assert times == sorted(times)
    assert times[0] == first_ns


def _ns(message: Clock) -> int:
    return int(message.clock.sec) * 1_000_000_000 + int(message.clock.nanosec)


def test_replay_begins_when_the_nodes_that_listen_to_the_clock_have_found_it(rig, panda_spec, monkeypatch):
    monkeypatch.setattr(bag_player, "ANSWER_S", PATIENCE_S)
    node = rig.process(panda_spec, use_sim_time=True)
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    clock = rig.listen(Clock, "/clock")
    topics = tuple(stream.topic for stream in load_spec(panda_spec).streams)
    until(lambda: all(rig.node.count_subscribers(topic) for topic in topics), "the subscriptions")
    until(lambda: rig.node.count_subscribers("/clock") == 2, "those of /clock")
    until(fused.subscription.get_publisher_count, "the ticks")
    node.popen.send_signal(signal.SIGSTOP)
    replay = threading.Thread(target=rig.play, kwargs={"rate": 4.0, "duration_s": 0.5, "topics": topics})
    try:
        replay.start()
        until(lambda: len(clock) > 50, "the player")
        assert len({_ns(message) for message in clock.messages}) == 1
    finally:
        node.popen.send_signal(signal.SIGCONT)
    replay.join()
    until(lambda: len(fused), "a tick")
    assert read_fused(fused.messages[0])[0] - _ns(clock.messages[0]) < 20 * MS


def test_latched_messages_reach_later_subscribers(rig, tmp_path):
    types = {"/map_name": "std_msgs/msg/String", "/spoken": "std_msgs/msg/String"}
    messages = [("/map_name", 10**18, TEXT), ("/spoken", 10**18 + MS, TEXT)]
    path = write_bag(tmp_path / "bag", types, messages, latched=["/map_name"])
    with Bag(path) as bag:
        BagPlayer(rig.node, bag, Options()).run()
        kept = rig.listen(String, "/map_name", latched=True)
        until(lambda: len(kept), "the message published before there was a subscriber")
    assert kept.newest.data == "map"


def called(*arguments: object) -> int:
    """The exit code of the player."""
    try:
        return bag_player.main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["/nowhere"], 1, "/nowhere: no such recording"),
        ([PANDA, "--topics", "/nothing"], 1, "has no topic /nothing"),
        ([PANDA, "--start", "100"], 1, "none left with start 100 s"),
        ([PANDA, "-s", "sqlite3"], 1, f"--storage: sqlite3, but {PANDA} is mcap; leave the option out"),
        ([PANDA, "--rate", "0"], 2, "rate: 0.0 is not between"),
        ([PANDA, "--rate", "nan"], 2, "rate: nan is not between"),
        ([PANDA, "--start", "inf"], 2, "start: inf is not between 0 and 1e+06; give a number of seconds"),
        ([PANDA, "--start", "-1"], 2, "start: -1.0 is not between"),
        ([PANDA, "--duration", "nan"], 2, "duration: nan is not between"),
        ([PANDA, "--wait-for-subscribers", "nan"], 2, "wait: nan is not between"),
        ([PANDA, "--wait-for-subscribers", "1e9"], 2, "wait: 1000000000.0 is not between"),
        ([PANDA, "--remap", "/joints"], 2, "remap: '/joints' is not from:=to; write /joints:=/left/joints"),
    ],
)
def test_recording_or_option_that_cannot_be_played_is_one_error_line(rig, capfd, arguments, code, expected):
    assert called(*arguments) == code
    errors = capfd.readouterr().err
    assert expected in errors.splitlines()[-1]
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("number", "waiting"), [(signal.SIGINT, False), (signal.SIGTERM, True)], ids=["playing", "waiting"]
)
def test_signal_ends_a_replay_cleanly(rig, number, waiting):
    poses = rig.listen(PoseStamped, "/panda/ee_pose")
    player = rig.program("play", PANDA, *(("--wait-for-subscribers", "1000") if waiting else ("--loop",)))
    until(lambda: poses.subscription.get_publisher_count() if waiting else len(poses), "the player")
    assert player.stop(number) == 0, player.log.read_text()
    assert "Traceback" not in player.log.read_text()


def test_damage_found_while_playing_is_logged(rig, capfd, tmp_path):
    recording = make("mcap", tmp_path / "bag")
    data = bytearray(recording.data)
    chunks = [stop for op, _, stop in mcap.records(recording.data, 8) if op == mcap.CHUNK]
    data[chunks[3] - 1] ^= 1  # the summary is undamaged: only reading the chunk shows it
    recording.file.write_bytes(data)
    assert called(recording.path, "--rate", 10) == 0
    assert "1 of 7 chunks are damaged; 20 of 140 messages could not be read" in capfd.readouterr().err


def test_topics_of_a_spec_are_replayed(rig):
    spec = ROOT / "config" / "panda_lift.yaml"
    with Bag(PANDA) as bag:
        played = BagPlayer(rig.node, bag, Options(spec=str(spec), duration_s=0.2, rate=10.0)).run()
        streams = {stream.topic for stream in load_spec(spec).streams}
        assert played.messages == sum(1 for _ in bag.messages(streams, None, bag.start_ns + 200 * MS))


def test_relative_topics_of_a_spec_are_replayed_in_the_namespace(rig, tmp_path):
    spec, stream = tmp_path / "robot.yaml", "type: geometry_msgs/msg/PoseStamped, field: pose.position"
    spec.write_text(f"robocache: 1\nstreams: {{ee: {{topic: panda/ee_pose, {stream}}}}}")
    node = rclpy.create_node("player", namespace="/robot1", context=rig.context)
    poses = rig.listen(PoseStamped, "/robot1/panda/ee_pose")
    with Bag(PANDA) as bag:
        played = BagPlayer(node, bag, Options(spec=str(spec), duration_s=0.2, rate=10.0, wait_s=60.0)).run()
    until(lambda: len(poses) == played.messages > 0, "the messages")
    node.destroy_node()


def test_topic_whose_type_is_not_installed_is_skipped_unless_none_remains(rig, capfd, monkeypatch, tmp_path):
    types = {"/named": "std_msgs/msg/String", "/odd": "stereo_msgs/msg/DisparityImage"}
    installed = middleware.load_message_class
    monkeypatch.setattr(middleware, "load_message_class", lambda name: None if "stereo" in name else installed(name))
    path = write_bag(tmp_path / "bag", types, [("/named", 10**18, TEXT), ("/odd", 10**18 + MS, TEXT)])
    assert called(path) == 0
    everything = capfd.readouterr().err
    assert called(path, "--topics", "/odd") == 1
    assert "install the package stereo_msgs" in capfd.readouterr().err
    monkeypatch.setattr(middleware, "load_message_class", lambda name: None)
    assert called(path) == 1
    assert "install the package std_msgs" in capfd.readouterr().err
    assert "/odd: its type stereo_msgs/msg/DisparityImage is not installed" in everything
    assert "the topic is not replayed" in everything
    assert "1 messages published" in everything


def test_topics_are_remapped_short_options_are_those_of_ros2_bag_play_and_parameters_answer_meanwhile(rig):
    poses = rig.listen(PoseStamped, "/left/pose")
    commands = rig.listen(Float64MultiArray, "/left/command")
    words = ["--topics", "/panda/ee_pose", "/panda/command", "-r", "8", "-l", "-s", "mcap", "--start-offset", "1"]
    remapped = ["-m", "/panda/ee_pose:=/left/pose", "--ros-args", "-r", "/panda/command:=/left/command"]
    rig.program("play", PANDA, *words, *remapped)
    until(lambda: len(poses) and len(commands), "messages under their new names")
    answer = rig.call(ListParameters, "/bag_player/list_parameters")
    assert "use_sim_time" in answer.result.names
