"""Small recordings, and the one that the project keeps."""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.first_spec import first_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


@pytest.fixture(scope="session")
def panda_lift():
    return Path(__file__).parents[1] / "data" / "panda_lift"


def numbers(*values):
    """A std_msgs/Float64MultiArray in CDR."""
    return b"\0\1\0\0" + struct.pack(f"<III4x{len(values)}d", 0, 0, len(values), *values)


def pose(stamp_ns, x=0.0):
    """A geometry_msgs/PoseStamped in CDR, identity orientation."""
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return b"\0\1\0\0" + struct.pack("<iII4x7d", seconds, nanoseconds, 1, x, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def read(path, data=None):
    """The messages of a recording, and its notes; `data` is written to it first."""
    if data is not None:
        path.write_bytes(data)
    with Bag(path) as bag:
        return list(bag.messages()), bag.notes


def suggested(path):
    """The first spec of a recording."""
    return load_spec(yaml.safe_load(first_spec(describe(path)).text))


class Fused(NamedTuple):
    run: BagRun
    ticks_ns: np.ndarray
    values: np.ndarray
    valid: np.ndarray


def fused(path, spec, **options):
    """The ticks of a recording."""
    with Bag(path) as bag:
        run = BagRun(bag, spec, **options)
        parts = [(part.ticks_ns, part.fused.numpy(), part.valid) for part in run.frames()]
    return Fused(run, *(np.concatenate(each) for each in zip(*parts, strict=True)))


TYPES = {"/arm/command": "std_msgs/msg/Float64MultiArray", "/arm/pose": "geometry_msgs/msg/PoseStamped"}


@pytest.fixture
def make_bag(tmp_path):
    """Writes two seconds of a 50 Hz pose, logged 5 ms late, and a 20 Hz command."""

    def make(name="bag", **options):
        messages = [
            ("/arm/pose", START_NS + (20 * k + 5) * MS, pose(START_NS + 20 * k * MS, 0.1 * k)) for k in range(100)
        ]
        messages += [("/arm/command", START_NS + 50 * k * MS, numbers(k, -k)) for k in range(40)]
        messages.sort(key=lambda message: message[1])
        return write_bag(tmp_path / name, TYPES, messages, **options)

    return make
