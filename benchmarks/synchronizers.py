"""What FusedFilter and ApproximateTimeSynchronizer deliver and drop, on the same topics over DDS.

Run: python -m benchmarks.synchronizers [--seconds 10]

A process publishes joints at 100 Hz, whose position is a sine of the time, and images at 30 Hz. Both filters have the
same Subscribers. Writes synchronizers.json and synchronizers.md. Needs ROS with message_filters.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.report import argument_parser, system, tell, write_results

JOINTS_HZ, IMAGES_HZ = 100.0, 30.0
SLOP_S, QUEUE = 0.02, 10
FIRST_S = 1.0  # not counted: while publishers and subscribers find each other


@dataclass(frozen=True)
class Case:
    """What happens to the topics.

    Attributes:
        name: of the row.
        image_delay_s: from the stamp of an image to its publication.
        lost: share of the messages of the joints that are not published.
        pause_s: time in the middle without images.
    """

    name: str
    image_delay_s: float = 0.0
    lost: float = 0.0
    pause_s: float = 0.0


CASES = (
    Case("both topics as planned"),
    Case("images 80 ms late", image_delay_s=0.08),
    Case("half of the joint states lost", lost=0.5),
    Case("four of five joint states lost", lost=0.8),
    Case("no images for 2 s", pause_s=2.0),
)


def position(stamp_ns: int) -> float:
    """The position of the joint: 0.5 Hz, amplitude 1 rad."""
    return math.sin(math.pi * (stamp_ns % 2_000_000_000) / 1e9)


def publish(case: Case, seconds: float) -> None:
    """Publish the messages of a case; a process of its own."""
    import rclpy
    from sensor_msgs.msg import Image, JointState

    rclpy.init()
    node = rclpy.create_node("drivers")
    joints, images = node.create_publisher(JointState, "/joints", 50), node.create_publisher(Image, "/front", 50)
    start_ns, random = time.time_ns(), np.random.default_rng(0)
    pause = (FIRST_S + seconds / 2, FIRST_S + seconds / 2 + case.pause_s)
    total_s = FIRST_S + seconds
    plan = [(k / JOINTS_HZ, 0.0, joints) for k in range(int(total_s * JOINTS_HZ)) if random.random() >= case.lost]
    stamps = (k / IMAGES_HZ + 0.003 for k in range(int(total_s * IMAGES_HZ)))
    plan += [(at, case.image_delay_s, images) for at in stamps if not pause[0] <= at < pause[1]]
    for at_s, delay_s, publisher in sorted(plan, key=lambda entry: entry[0] + entry[1]):
        stamp_ns = start_ns + round(at_s * 1e9)
        time.sleep(max(0.0, (stamp_ns - time.time_ns()) / 1e9 + delay_s))
        if publisher is joints:
            message: Any = JointState(name=["arm"], position=[position(stamp_ns)])
        else:
            message = Image(height=48, width=64, encoding="rgb8", step=192, data=bytes(48 * 192))
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 10**9)
        publisher.publish(message)
    time.sleep(0.5)
    node.destroy_node()
    rclpy.try_shutdown()


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """What both filters deliver in a case."""
    import rclpy
    from message_filters import ApproximateTimeSynchronizer, Subscriber
    from sensor_msgs.msg import Image, JointState

    from robocache_ros.filters import FusedFilter

    rclpy.init()
    node = rclpy.create_node("consumer")
    images = Subscriber(node, Image, "/front", qos_profile=50)
    joints = Subscriber(node, JointState, "/joints", qos_profile=50)
    seen: dict[str, list[int]] = {"front": [], "joints": []}
    images.registerCallback(lambda message: seen["front"].append(_stamp_ns(message)))
    joints.registerCallback(lambda message: seen["joints"].append(_stamp_ns(message)))
    sets: list[tuple[int, float, int]] = []  # time, position, stamp of the image
    ticks: list[tuple[int, float, int]] = []
    invalid: list[int] = []
    synchronizer = ApproximateTimeSynchronizer([images, joints], QUEUE, SLOP_S)
    synchronizer.registerCallback(
        lambda image, joint: sets.append((_stamp_ns(image), joint.position[0], _stamp_ns(image)))
    )
    streams: dict[str, dict[str, Any]] = {
        "front": {"topic": "/front"},
        "joints": {"topic": "/joints", "names": ["arm"]},
    }

    def on_frame(frame: Any) -> None:
        if frame.all_valid:
            age_ns = int(frame.age_ns["front"][-1])
            ticks.append((frame.tick_ns, float(frame["joints"][-1, 0]), frame.tick_ns - age_ns))
        else:
            invalid.append(frame.tick_ns)

    with FusedFilter(node, [images, joints], streams=streams, delay_ms=120) as fused:
        fused.registerCallback(on_frame)
        drivers = multiprocessing.get_context("spawn").Process(target=publish, args=(case, seconds))
        drivers.start()
        while drivers.is_alive():
            rclpy.spin_once(node, timeout_sec=0.1)
        counters = fused.counters
    node.destroy_node()
    rclpy.try_shutdown()
    begin_ns = min(seen["joints"]) + round(FIRST_S * 1e9)
    end_ns = max(*seen["joints"], *seen["front"]) - 200_000_000  # the last messages of a topic have no partner yet
    stamps = {stamp for stamp in seen["front"] if begin_ns <= stamp < end_ns}
    span_s = (end_ns - begin_ns) / 1e9
    marked = [tick for tick in invalid if begin_ns <= tick < end_ns]
    return {
        "case": case.name,
        "ApproximateTimeSynchronizer": _facts(sets, begin_ns, end_ns, span_s, stamps),
        "FusedFilter": _facts(ticks, begin_ns, end_ns, span_s, stamps)
        | {"marked_per_s": len(marked) / span_s, "counters": counters},
    }


def _facts(
    delivered: list[tuple[int, float, int]], begin_ns: int, end_ns: int, span_s: float, stamps: set[int]
) -> dict[str, Any]:
    counted = [each for each in delivered if begin_ns <= each[0] < end_ns]
    times = np.array([begin_ns, *(each[0] for each in counted), end_ns])
    errors = [abs(value - position(time_ns)) for time_ns, value, _ in counted]
    # Times of images come back through float32 milliseconds, to 1 us.
    used = sum(any(abs(stamp - each[2]) < 10_000 for each in counted) for stamp in stamps)
    return {
        "per_s": len(counted) / span_s,
        "longest_gap_ms": float(np.diff(times).max()) / 1e6,
        "mean_error_mrad": float(np.mean(errors)) * 1e3 if errors else None,
        "max_error_mrad": float(np.max(errors)) * 1e3 if errors else None,
        "images_unused": 1 - used / max(1, len(stamps)),
    }


def _stamp_ns(message: Any) -> int:
    stamp = message.header.stamp
    return int(stamp.sec * 10**9 + stamp.nanosec)


COLUMNS: Mapping[str, str] = {
    "per_s": "sets or complete ticks per s",
    "marked_per_s": "ticks with a stream marked invalid, per s",
    "longest_gap_ms": "longest time without one (ms)",
    "mean_error_mrad": "error of the joint at the time of the set, mean (mrad)",
    "max_error_mrad": "largest (mrad)",
    "images_unused": "images in no set",
}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| case | filter | " + " | ".join(COLUMNS.values()) + " |", "|---|---|" + "---:|" * len(COLUMNS)]
    for row in rows:
        lines += [
            f"| {row['case']} | {name} | " + " | ".join(_cell(row[name], key) for key in COLUMNS) + " |"
            for name in ("ApproximateTimeSynchronizer", "FusedFilter")
        ]
    return "\n".join(lines)


def _cell(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    if value is None:
        return "-"
    return f"{value:.0%}" if key == "images_unused" else f"{value:.1f}"


def main() -> None:
    """Measure every case, and write the results."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case")
    given = parser.parse_args()
    rows = []
    for case in CASES:
        tell(case.name)
        rows.append(measure(case, given.seconds) | {"given": asdict(case)})
    document = {"seconds": given.seconds, "slop_s": SLOP_S, "queue_size": QUEUE, "system": system(), "rows": rows}
    facts = document["system"]
    head = (
        f"# FusedFilter beside ApproximateTimeSynchronizer\n\nJoints at {JOINTS_HZ:g} Hz and images at {IMAGES_HZ:g} "
        f"Hz over DDS, {given.seconds:g} s for each case; slop {SLOP_S * 1e3:g} ms, queue {QUEUE}; FusedFilter at 50 "
        f"Hz with delay_ms 120.\nThe joint moves as sin(pi t), up to 3.1 mrad in 1 ms. {facts['cores']} cores, Python "
        f"{facts['python']}, {facts['date']}. Made by `python -m benchmarks.synchronizers`.\n\n"
    )
    write_results(given.out, "synchronizers", document, head + table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
