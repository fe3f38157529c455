"""Converts an mcap file to LeRobot v3 with forge-robotics, and prints the time without imports.

Runs with the Python of forge's environment, so this file imports nothing of this package. The number of rows is that of
the primary topic. forge's writer has no option for the distance of key frames, so its encoder is changed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Convert; the argument is a JSON object: file, out, fields (name -> topic), primary, settings of the encoder."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    topics, lerobot = import_module("forge.formats.mcap.topic_config"), import_module("forge.formats.lerobot_v3.writer")
    reader = import_module("forge.formats.mcap.reader").MCAPReader()
    for module in ("mcap_ros2.decoder", "pyarrow.parquet", "av"):
        import_module(module)
    fields = {
        name: topics.FieldMapping(topic=topic, field=None if ".images." in name else "position")
        for name, topic in wanted["fields"].items()
    }
    config = topics.TopicConfig(fields=fields, sync=topics.SyncPolicy(primary=wanted["primary"], method="nearest"))
    encoder = {f"video_{key}": wanted[key] for key in ("codec", "crf", "preset") if key in wanted}
    writer = lerobot.LeRobotV3Writer(lerobot.LeRobotV3WriterConfig(fps=wanted["fps"], **encoder))
    writer._video_encoder.config.gop_size = wanted.get("gop", 12)
    used = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    writer.write_dataset(reader.read_episodes(Path(wanted["file"]), config), Path(wanted["out"]))
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    info = json.loads((Path(wanted["out"]) / "meta" / "info.json").read_text(encoding="utf-8"))
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "rows": info["total_frames"]}))


if __name__ == "__main__":
    main()
