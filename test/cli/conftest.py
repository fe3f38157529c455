"""The recording that the tests of commands use."""

from __future__ import annotations

from pathlib import Path

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from test.shared import once

ROOT = Path(__file__).parents[2]
BAG, SPEC = str(ROOT / "test" / "data" / "panda_lift"), str(ROOT / "config" / "panda_lift.yaml")


@pytest.fixture(scope="session")
def short(tmp_path_factory):
    """2.5 s of the recording, with the gap of its joints: 124 ticks, two episodes."""

    def make(folder):
        with Bag(BAG) as complete:
            types = {name: topic.type for name, topic in complete.topics.items()}
            start_ns = complete.start_ns + 3_500_000_000
            messages = complete.messages(None, start_ns, start_ns + 2_500_000_000)
            return write_bag(folder / "panda_lift", types, list(messages))

    return once(tmp_path_factory, "panda_short", make)
