"""The conformance files of foxglove/mcap, from the folder mcap_conformance beside ROBOCACHE_RECORDINGS.

Their messages are not CDR. Each file is refused, and the line names how many messages it holds: as many as the
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
        why = f" ({file.name}: {count} messages are not CDR but a and were not read)" if count else ""
        with pytest.raises(RoboCacheError) as error:
            Bag(file)
        assert str(error.value) == f"{file}: holds no messages{why}; record it again"
