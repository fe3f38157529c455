"""What the episode recorder loses: every message of a robot's topics is numbered, sent over DDS, and looked for.

Joints at 500 Hz and two cameras of 30 jpeg images a second, from one process, as drivers publish them, into
`robocache record`. A message that is missing in the file and not counted in it was lost by the middleware.

    python -m benchmarks.recorder --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import argument_parser, system, tell, write_results
from robocache_ros.bags.reader import Bag
from robocache_ros.bench.live import cpu_s, environment
from robocache_ros.recorder.episodes import read_episode
from robocache_ros.sim.simulation import joint_state_cdr

JPEG_BYTES = 60_000  # of an image of 640x480
WAIT_S = 60.0


class Topic(NamedTuple):
    """A topic of the load."""

    name: str
    type: str
    rate_hz: int


TOPICS = (
    Topic("/joint_states", "sensor_msgs/msg/JointState", 500),
    Topic("/left/image_raw/compressed", "sensor_msgs/msg/CompressedImage", 30),
    Topic("/right/image_raw/compressed", "sensor_msgs/msg/CompressedImage", 30),
)
SPEC = {
    "robocache": 1,
    "streams": {
        "joints": {"topic": TOPICS[0].name, "type": TOPICS[0].type, "names": [f"joint{i}" for i in range(7)]},
        "left": {"topic": TOPICS[1].name, "type": TOPICS[1].type, "image": {"size": [224, 224]}},
        "right": {"topic": TOPICS[2].name, "type": TOPICS[2].type, "image": {"size": [224, 224]}},
    },
}


def image_cdr(number: int, jpeg: bytes) -> bytes:
    """Return a sensor_msgs/CompressedImage whose stamp is its number, in ns."""
    head = struct.pack("<4siII", b"\0\1\0\0", *divmod(number, 10**9), 1) + b"\0" + bytes(3)
    return head + struct.pack("<I", 5) + b"jpeg\0" + bytes(3) + struct.pack("<I", len(jpeg)) + jpeg


def publish(seconds: float, reliable: bool) -> None:
    """Publish the load in this process, until it is killed or the time is over."""
    import rclpy
    from rclpy.qos import QoSProfile, ReliabilityPolicy

    from robocache_ros.nodes import middleware, process

    process.reduce_timer_slack()
    rclpy.init()
    node = rclpy.create_node("load")
    reliability = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
    profile = QoSProfile(depth=10, reliability=reliability)
    classes: list[Any] = [middleware.load_message_class(topic.type) for topic in TOPICS]
    publishers = [node.create_publisher(c, t.name, profile) for c, t in zip(classes, TOPICS, strict=True)]
    names, jpeg = SPEC["streams"]["joints"]["names"], random.Random(0).randbytes(JPEG_BYTES)  # type: ignore[index]
    sent = [0] * len(TOPICS)
    begin = time.monotonic()
    while (now := time.monotonic() - begin) < seconds:
        for index, topic in enumerate(TOPICS):
            while sent[index] / topic.rate_hz <= now:
                number = sent[index]
                data = image_cdr(number, jpeg) if index else joint_state_cdr(number, names, np.zeros(7), np.zeros(7))
                publishers[index].publish(data)
                sent[index] += 1
        due = min(count / topic.rate_hz for count, topic in zip(sent, TOPICS, strict=True))
        time.sleep(max(0.0, begin + due - time.monotonic()))


def measure(seconds: float, *, reliable: bool, folder: Path) -> dict[str, Any]:
    """Record for some seconds; return what was sent, recorded and counted as lost, by topic, and the CPU time."""
    env = {**os.environ, **environment(tuned=True)}
    spec = folder / "spec.json"
    spec.write_text(json.dumps(SPEC), encoding="utf-8")
    load = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recorder", "--publish", str(seconds + WAIT_S), *["--reliable"] * reliable],
        env=env,
    )
    record = ["record", "--spec", str(spec), "--out", str(folder / "recordings")]
    recorder = subprocess.Popen(
        [sys.executable, "-m", "robocache_ros", *record],
        env=env,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    assert recorder.stdin
    part = folder / "recordings" / "episode_000001.mcap.part"
    end = time.monotonic() + WAIT_S
    while not part.exists() and time.monotonic() < end:
        recorder.stdin.write(b"start\n")
        recorder.stdin.flush()
        time.sleep(0.5)
    stat = Path(f"/proc/{recorder.pid}/stat")
    began, cpu = time.monotonic(), cpu_s(stat)
    time.sleep(seconds)
    cpu, seconds = cpu_s(stat) - cpu, time.monotonic() - began
    recorder.stdin.write(b"success\nquit\n")
    recorder.stdin.close()
    recorder.wait(WAIT_S)
    load.kill()
    load.wait()
    file = folder / "recordings" / "episode_000001.mcap"
    episode = read_episode(file)
    assert episode is not None
    topics = {}
    with Bag(file) as bag:
        for topic in TOPICS:
            stamps = [struct.unpack_from("<iI", message.data, 4) for message in bag.messages([topic.name])]
            numbers = [s * 10**9 + ns for s, ns in stamps]
            sent = numbers[-1] - numbers[0] + 1
            topics[topic.name] = {
                "sent": sent,
                "recorded": len(set(numbers)),
                "counted_as_lost": episode.lost.get(topic.name, 0),
                "not_counted": sent - len(set(numbers)) - episode.lost.get(topic.name, 0),
            }
    return {
        "publishers": "reliable" if reliable else "best_effort",
        "seconds": round(seconds, 1),
        "cores": round(cpu / seconds, 3),
        "mb_per_s": round(file.stat().st_size / seconds / 1e6, 2),
        "topics": topics,
    }


def page(results: dict[str, Any]) -> str:
    """Return the results as a Markdown page."""
    about = results["system"]
    lines = [
        "# What the episode recorder loses",
        "",
        f"{about['cores']} cores ({about['cpu']}), Python {about['python']}, {about['date']}, load average before the "
        f"runs {results['load_average']:.1f}. `python -m benchmarks.recorder`",
        "",
        "Joints at 500 Hz and two cameras of 30 jpeg images of 60 kB a second, over DDS with `config/fastdds.xml`,",
        "into `robocache record`. Each message has a number; *sent* are those from the first to the last recorded one.",
        "*Not counted*: neither in the file nor counted in it as lost, so the middleware lost it.",
        "",
        "| publishers | s | topic | sent | recorded | counted as lost | not counted | CPU of the recorder, cores |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in results["runs"]:
        for name, found in run["topics"].items():
            cells = [run["publishers"], run["seconds"], f"`{name}`", *found.values(), run["cores"]]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure both reliabilities of publishers."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="Length of each episode.")
    parser.add_argument("--publish", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--reliable", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        publish(given.publish, given.reliable)
        return
    results: dict[str, Any] = {"system": system(), "load_average": os.getloadavg()[0], "runs": []}
    for reliable in (True, False):
        tell(f"recording for {given.seconds:g} s from {'reliable' if reliable else 'best effort'} publishers")
        with tempfile.TemporaryDirectory() as folder:
            results["runs"].append(measure(given.seconds, reliable=reliable, folder=Path(folder)))
    write_results(given.out, "recorder", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
