"""Small recordings, and the one that the project keeps."""

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
from test.fuzz.recordings import TYPES, messages


@pytest.fixture(scope="session")
def panda_lift():
    return Path(__file__).parents[1] / "data" / "panda_lift"


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


@pytest.fixture
def make_bag(tmp_path):
    """Writes two seconds of a 50 Hz pose, logged 5 ms late, and a 20 Hz command."""
    return lambda name="bag", **options: write_bag(tmp_path / name, dict(sorted(TYPES.items())), messages(), **options)
