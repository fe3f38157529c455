"""How near orders of samples are to a full shuffle. Nothing is timed: the figures do not depend on the machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robocache_ros.datasets.loader.order import BatchOrder, Int64

FPS, EPOCHS = 30, 3


class Nearness(NamedTuple):
    """What the batches of an order have in common with each other and within.

    Attributes:
        once: whether each epoch has each sample exactly once.
        alike: other samples of a batch within 1 s of a sample, on average.
        of_episode: those of its episode.
        variance: of the means of batches, over that of independent samples; the largest of three features.
        correlation: of the means of a batch and the next one; the largest of three features.
    """

    once: bool
    alike: float
    of_episode: float
    variance: float
    correlation: float


def nearness(order: BatchOrder, ends: Int64) -> Nearness:
    """Return how near an order is to a full shuffle.

    The features of a sample are a value of its episode, one that moves slowly in it, and one that moves fast.

    Args:
        order: of all samples.
        ends: (E,) the number after the last sample of each episode.
    """
    random, numbers = np.random.default_rng(0), np.arange(order.length)
    episode = np.searchsorted(ends, numbers, "right")
    time_s = (numbers - np.concatenate([[0], ends[:-1]])[episode]) / FPS
    phase = random.uniform(0, 2 * np.pi, len(ends))[episode]
    slow, fast = (np.sin(rate * time_s + phase) for rate in (2, 10))
    features = np.stack([random.standard_normal(len(ends))[episode], slow, fast])
    means, alike, together, once = [], [], [], True
    for epoch in range(EPOCHS):
        batches = [batch for batch in order.batches(epoch) if len(batch)]
        once &= np.array_equal(np.sort(np.concatenate(batches)), numbers)
        for batch in batches:
            if len(batch) < order.batch_size:
                continue
            same = (episode[batch][:, None] == episode[batch]) & ~np.eye(len(batch), dtype=bool)
            near = np.abs(batch[:, None] - batch) <= FPS
            together.append(same.sum(1).mean())
            alike.append((same & near).sum(1).mean())
            means.append(features[:, batch].mean(1))
    found = np.array(means).T  # (3, batches)
    variance = found.var(1) / (features.var(1) / order.batch_size)
    correlation = [np.corrcoef(each[:-1], each[1:])[0, 1] for each in found]
    return Nearness(bool(once), *map(float, (np.mean(alike), np.mean(together), variance.max(), max(correlation))))
