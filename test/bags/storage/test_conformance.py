"""The conformance files of foxglove/mcap, from the folder mcap_conformance beside ROBOCACHE_RECORDINGS.

Their messages are not of ROS. Each file is refused, and the line names how many messages it holds: as many as the
description beside the file lists, whatever the layout of the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")

from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError

RECORDINGS = os.environ.get("ROBOCACHE_RECORDINGS")
FILES = sorted(Path(RECORDINGS).parent.glob("mcap_conformance/conformance/*/*.mcap")) if RECORDINGS else []

pytestmark = pytest.mark.skipif(not FILES, reason="no mcap_conformance beside ROBOCACHE_RECORDINGS")


@pytest.mark.parametrize("kind", sorted({file.parent.name for file in FILES}))
def test_files_of_every_layout_are_refused_in_one_true_line(kind: str) -> None:
    for file in FILES:
        if file.parent.name != kind:
            continue
        records = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["records"]
        count = sum(record["type"] == "Message" for record in records)
        with pytest.raises(RoboCacheError) as error:
            Bag(file)
        text = str(error.value)
        assert text.startswith(f"{file}: ")
        assert text.endswith("; give one with ROS messages" if count else "; record it again")
        assert text.isprintable()
        assert (f": {count} messages are not ROS messages (cdr, ros1) but 'a'" in text) == bool(count)
        assert ("has no messages" in text) != bool(count)
