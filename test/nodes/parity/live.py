"""What a node publishes while a recording is replayed to it over real DDS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Float32MultiArray
from torch import Tensor

from robocache_ros.nodes import frame_messages
from robocache_ros.spec import load_spec
from test.nodes.rig import PANDA, Rig, until


@dataclass
class Live:
    """The window of each message, images and voxels by tick, and the last diagnostics of each stream."""

    windows: list[tuple[int, Tensor]]
    media: dict[str, dict[int, Tensor]]
    counters: dict[str, dict[str, str]]

    @property
    def rows(self) -> dict[int, Tensor]:
        """The newest row of each window, by its tick."""
        return {tick: window[-1] for tick, window in self.windows}


def replay(
    rig: Rig, given: dict[str, Any], last_ns: int, recording: Path = PANDA, *,
    node: Any = None, media: bool = False, parameters: dict[str, Any] | None = None, **options: Any,
) -> Live:  # fmt: skip
    """Replay a recording until a tick is published, by a node of its own where no active one is given.

    Media are listened to on request; a reader that is slow is not waited for, and misses some.
    """
    spec = load_spec(given)
    given_parameters = {"use_sim_time": True, "diagnostics_period_s": 0.2} | (parameters or {})
    process = None if node else rig.process(given, **given_parameters)
    rig.diagnostics.raw.clear()  # of an earlier node
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    streams = spec.media if media else ()
    aligned = {
        stream.name: rig.listen(PointCloud2 if stream.voxels else Image, f"/fusion_node/{stream.name}/aligned")
        for stream in streams
    }
    until(lambda: all(i.subscription.get_publisher_count() for i in (fused, *aligned.values())), "the node's topics")
    rig.play(recording, **options)
    until(lambda: len(fused) and frame_messages.read_fused(fused.newest)[0] >= last_ns, "the last tick")
    until(lambda: int(rig.counts("ticks").get("newest_tick_ns") or 0) >= last_ns, "the last counters")
    live = Live(
        [frame_messages.read_fused(message) for message in fused.messages],
        {
            stream.name: {
                frame_messages.stamp_ns(message.header): frame_messages.read_voxels(message, stream.voxels)
                if stream.voxels
                else frame_messages.read_image(message)
                for message in aligned[stream.name].messages
            }
            for stream in streams
        },
        {stream.name: rig.counts(stream.name) for stream in spec.streams},
    )
    if process:
        assert process.stop() == 0, process.log.read_text()
    return live
