"""A model of an export with Ray: the time of the conversions, and of what does not get faster with more workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINEAR = 0.9  # share of the speed of N single workers from which N workers scale linearly


@dataclass(frozen=True)
class Costs:
    """What an export costs; times in s.

    Attributes:
        task_s: conversion of a recording by one worker, without requests to a bucket.
        core_s: of all cores together for a recording: its CPU time by the number of cores; 0: a worker has its own.
        driver_s: of the driver for each recording: submit its task and take its result.
        merge_s: of the merge for each recording, which one machine does.
        start_s: until workers have started, once.
        read_bytes, written_bytes: of a recording, and of its pieces.
        requests: to the bucket, of a recording, one after the other.
        latency_s: of a request.
        worker_bytes_s, bucket_bytes_s: bandwidth of a worker, and of the bucket to all of them.
    """

    task_s: float
    driver_s: float
    merge_s: float
    start_s: float = 0.0
    core_s: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    requests: float = 0.0
    latency_s: float = 0.0
    worker_bytes_s: float = math.inf
    bucket_bytes_s: float = math.inf

    @property
    def moved_bytes(self) -> float:
        """Bytes that are moved for a recording."""
        return self.read_bytes + self.written_bytes

    @property
    def recording_s(self) -> float:
        """Time of a worker for a recording."""
        return self.task_s + self.requests * self.latency_s + self.moved_bytes / self.worker_bytes_s

    def stages(self, recordings: int, workers: int) -> Mapping[str, float]:
        """Return the time that each stage needs at least, in s; those of the conversion overlap."""
        return {
            "conversions": math.ceil(recordings / workers) * self.recording_s,
            "the cores": recordings * self.core_s,
            "the driver": recordings * self.driver_s,
            "the bucket": recordings * self.moved_bytes / self.bucket_bytes_s,
            "the merge": recordings * self.merge_s,
            "the start": self.start_s,
        }

    def seconds(self, recordings: int, workers: int) -> float:
        """Return the time of an export in s."""
        stages = dict(self.stages(recordings, workers))
        after = stages.pop("the merge") + stages.pop("the start")
        return max(stages.values()) + after


def speedups(costs: Costs, recordings: int, workers: Sequence[int]) -> list[float]:
    """Return how many times as fast as one worker each number of workers is."""
    return [costs.seconds(recordings, 1) / costs.seconds(recordings, count) for count in workers]


def end_of_linear(costs: Costs, recordings: int, most: int) -> tuple[int, str]:
    """Return the largest number of workers that scales linearly, up to `most`, and what limits more of them."""
    last = 1
    for count in range(1, most + 1):
        if speedups(costs, recordings, [count])[0] >= LINEAR * count:
            last = count
    stages = costs.stages(recordings, last + 1)
    even = recordings / (last + 1) * costs.recording_s
    lost = {name: stages[name] for name in ("the merge", "the start")}
    lost |= {name: stages[name] - even for name in ("the cores", "the driver", "the bucket")}
    lost["recordings that do not divide evenly"] = stages["conversions"] - even
    return last, max(lost, key=lost.__getitem__)
