"""Ranks of torch.distributed in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from counting_episodes import Counting

from robocache_ros.datasets import LoaderOptions, TimelineLoader
from robocache_ros.errors import RoboCacheError
from test import forked
from test.datasets.conftest import STEPS, episode, write_tfds

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
def test_ranks_see_every_sample_once_in_each_epoch(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(2 + k % 3, 10.0 * k) for k in range(7)])
    script = Path(__file__).with_name("rank_of_two.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        forked.Popen(
            [sys.executable, str(script), str(folder), str(tmp_path / "meeting"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    reported = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]

    assert reported[0]["epochs"] == reported[1]["epochs"]
    assert [f"rank {rank} of 2" in each["repr"] for rank, each in enumerate(reported)] == [True, True]
    orders = []
    for shares in reported[0]["epochs"]:
        assert [len(share) for share in shares] == [reported[0]["length"]] * 2
        order = [index for share in shares for batch in share for index in batch]
        assert sorted(order) == list(range(reported[0]["samples"]))
        orders.append(order)
    assert orders[0] != orders[1]


def test_a_loader_that_was_created_before_the_ranks_is_refused(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, separate = (
        TimelineLoader(counting, 4),
        TimelineLoader(counting, 4, options=LoaderOptions(rank=0, world_size=1)),
    )
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)

    with pytest.raises(RoboCacheError, match="initialised after the loader was created; create it afterwards"):
        next(iter(before))
    assert len(list(separate)) == 4
