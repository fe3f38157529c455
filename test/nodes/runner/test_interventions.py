"""Corrections of an operator: recorded while a policy runs on the simulated robot, and exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from robocache_ros.sim.so101 import JOINTS
from test.nodes.rig import ROOT, repeating, until

ACTION = [f"action.{name}" for name in JOINTS]
POLICY = """
import numpy as np

def still(frame):
    return np.full((50, 6), 0.25)
"""


def spec_of(action: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The spec of the simulated robot, with another stream of actions."""
    spec = yaml.safe_load((ROOT / "config" / "so101.yaml").read_text(encoding="utf-8"))
    del spec["streams"]["front"]
    spec["delay_ms"] = 20  # the command of a tick comes after its time, and before the next tick
    spec["streams"]["action"].update(action)
    return spec | more


@pytest.fixture
def runner(rig, tmp_path):
    (tmp_path / "mine.py").write_text(POLICY)
    run = {"coast_ticks": 1000, "invalid_ticks": 1000, "outputs": {"action": {"takeover": "/operator"}}}
    spec = spec_of({}, run=run)
    with rig.simulator("--rate=0.25"):  # all nodes are in this process, which a busy machine slows down
        rig.fusion(spec, use_sim_time=True).autostart()
        node = rig.runner(spec, policy=f"{tmp_path / 'mine.py'}:still", use_sim_time=True)
        assert node.autostart()
        yield


@pytest.mark.slow
def test_a_takeover_on_the_simulated_robot_is_exported_as_corrections(rig, runner, tmp_path):
    from sensor_msgs.msg import JointState
    from std_srvs.srv import SetBool

    import robocache_ros
    from robocache_ros.bags.reader import Bag
    from robocache_ros.decode.cdr import read_message
    from robocache_ros.decode.definitions import message_type
    from robocache_ros.nodes.frame_messages import stamp_ns

    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    recorder = rig.recorder(spec_of({}), use_sim_time=True)
    operator = rig.publisher(JointState, "/operator")
    commands = rig.listen(JointState, "/so101/commands")
    until(lambda: len(commands) and list(commands.newest.position) == [0.25] * 6, "commands of the policy")
    until(lambda: not recorder.silent(), "all streams")
    until(lambda: {"/policy_runner/action", "/policy_runner/intervention"} <= _topics(recorder), "those of the runner")
    recorder.start()
    until(lambda: recorder._receiver.episode.received["/policy_runner/action"] > 20, "actions of the policy")

    def operate():
        operator.publish(JointState(name=list(JOINTS), position=[0.5] * 6))

    rig.call(SetBool, "/policy_runner/takeover", data=True)
    until(repeating(operate, lambda: list(commands.newest.position) == [0.5] * 6, 0.02), "commands of the operator")
    count = len(commands)
    until(repeating(operate, lambda: len(commands) > count + 30, 0.02), "more of them")
    rig.call(SetBool, "/policy_runner/takeover", data=False)
    until(lambda: list(commands.newest.position) == [0.25] * 6, "commands of the policy again")
    count = len(commands)
    until(lambda: len(commands) > count + 20, "more of them")
    recorder.end(success=True)

    recording = tmp_path / "recordings" / "episode_000001.mcap"
    with Bag(recording) as bag:
        kind = message_type("sensor_msgs/msg/JointState", bag.definitions)
        actions = [read_message(kind, message.data) for message in bag.messages(["/policy_runner/action"])]
        assert abs(len(list(bag.messages(["/policy_runner/executed"]))) - len(actions)) <= 2  # at the ends
    ticks = {stamp_ns(m.header): m.position for m in actions}
    assert list(actions[0].name) == [*ACTION, "intervention"]

    # All ticks: what was executed is the action, to the bit, and a column marks the operator's.
    stream = {"topic": "/policy_runner/action", "type": "sensor_msgs/msg/JointState", "max_age_ms": 0, "align": "hold"}
    spec = spec_of({**stream, "names": ACTION, "stamp": "header"})
    spec["streams"]["by_operator"] = {**stream, "names": ["intervention"], "role": "intervention"}
    robocache_ros.export(recording, spec, tmp_path / "all", media="none")
    rows = pq.read_table(next((tmp_path / "all").rglob("data/*/*.parquet"))).to_pydict()
    marked = np.array(rows["intervention"])
    assert 25 < marked.sum() < len(marked) - 25
    assert len(rows["action"]) > len(ticks) - 10  # those of the ends
    for tick_ns, action, mark in zip(rows["robocache.tick_ns"], rows["action"], marked, strict=True):
        executed = np.array(ticks[tick_ns])
        assert action == executed[:6].astype(np.float32).tolist()
        assert mark == executed[6]
    assert not any("intervention" in name for name in rows["observation.state"] or [])

    # Corrections only: an episode for each takeover.
    robocache_ros.export(recording, spec, tmp_path / "few", media="none", corrections=True)
    rows = pq.read_table(next((tmp_path / "few").rglob("data/*/*.parquet"))).to_pydict()
    assert set(rows["episode_index"]) == {0}
    assert rows["intervention"] == [True] * int(marked.sum())


def _topics(recorder: Any) -> set[str]:
    return {topic.topic.name for topic in recorder._receiver.topics}
