"""Windows against a plain-Python oracle: any lengths, rates, horizons and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robocache_ros.datasets import LoaderOptions, SourceEpisode, Stream, TimelineDataset, TimelineLoader, Window

HZ = 10
STEP_NS = 10**9 // HZ


class Episodes:
    """Episodes whose state counts the steps, and whose actions are -1 - step; actions may begin late."""

    def __init__(self, lengths: list[int], late: int) -> None:
        self.lengths, self.late = lengths, late

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, index: int) -> SourceEpisode:
        count = self.lengths[index]
        stamps = np.arange(count, dtype=np.int64) * STEP_NS
        rows = (100 * index + np.arange(count, dtype=np.float32))[:, None]
        first = min(self.late, count - 1)
        streams = [
            Stream("proprio", stamps, rows, False),
            Stream("actions", stamps[first:], -1 - rows[first:], False, "action"),
        ]
        return SourceEpisode({each.name: each for each in streams}, f"task {index}", "oracle", f"oracle: {index}")

    def span_ns(self, index: int) -> tuple[int, int]:
        return 0, (self.lengths[index] - 1) * STEP_NS


def oracle(source: Episodes, window: Window) -> list[dict[str, Any]]:
    """Every window, step by step."""
    found = []
    for index, length in enumerate(source.lengths):
        first = min(source.late, length - 1)
        for tick in range(length):
            observed = [tick - window.n_obs + 1 + k for k in range(window.n_obs)]
            acted = [tick + window.action_offset + k for k in range(window.horizon)]
            rows = [min(max(row, 0), length - 1) for row in observed]
            actions = [min(max(row, 0), length - 1) for row in acted]
            found.append(
                {
                    "proprio": [[100.0 * index + row] for row in rows],
                    "actions": [[-1.0 - 100 * index - row if row >= first else 0.0] for row in actions],
                    "is_pad": [not 0 <= row < length for row in observed],
                    "action_is_pad": [not 0 <= row < length for row in acted],
                    "valid": [[1, int(row >= first)] for row in rows],
                    "tick_ns": [row * STEP_NS for row in rows],
                    "language": f"task {index}",
                    "length": window.n_obs,
                }
            )
    return found


lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
windows = st.builds(Window, st.integers(1, 5), st.integers(1, 5), st.integers(-7, 7))


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@settings(max_examples=150, deadline=None)
@given(lengths=lengths, window=windows, late=st.integers(0, 3))
def test_every_window_is_that_of_the_oracle(lengths: list[int], window: Window, late: int) -> None:
    source = Episodes(lengths, late)
    dataset = TimelineDataset(source, target_hz=HZ, window=window)
    wanted = oracle(source, window)

    assert len(dataset) == len(wanted) == sum(lengths)
    for index, expected in enumerate(wanted):
        sample = dataset[index]
        assert {key: plain(sample[key]) for key in expected} == expected


@settings(max_examples=40, deadline=None)
@given(lengths=lengths, window=windows, batch_size=st.integers(1, 7), seed=st.integers(0, 2**40), cached=st.booleans())
def test_batches_have_every_window_once(
    lengths: list[int], window: Window, batch_size: int, seed: int, cached: bool
) -> None:
    source = Episodes(lengths, 0)
    dataset = TimelineDataset(source, target_hz=HZ, window=window)
    wanted = oracle(source, window)

    loader = TimelineLoader(dataset, batch_size, shuffle=True, seed=seed, cache="host" if cached else "none")
    seen = []
    for batch in loader:
        for row, index in enumerate(batch["index"].tolist()):
            expected = {key: value for key, value in wanted[index].items() if key != "tick_ns"}
            assert {key: plain(batch[key][row]) for key in expected} == expected
            seen.append(index)

    assert sorted(seen) == list(range(len(wanted)))


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths,
    ticks=st.integers(1, 5),
    stride=st.integers(1, 4),
    ranks=st.integers(1, 3),
    batch_size=st.integers(1, 4),
)
def test_windows_of_the_loader_are_complete_parts_that_ranks_share(
    lengths: list[int], ticks: int, stride: int, ranks: int, batch_size: int
) -> None:
    wanted = [(index, start) for index, length in enumerate(lengths) for start in range(0, length - ticks + 1, stride)]
    assume(wanted and len(wanted) // ranks >= -(-len(wanted) // (ranks * batch_size)))  # else it is refused
    dataset = TimelineDataset(Episodes(lengths, 0), target_hz=HZ)
    seen = []
    for rank in range(ranks):
        options = LoaderOptions(windows=(ticks, stride), rank=rank, world_size=ranks)
        for batch in TimelineLoader(dataset, batch_size, shuffle=True, options=options):
            assert batch["proprio"].shape[1:] == (ticks, 1)
            for values in batch["proprio"][:, :, 0].tolist():
                index, start = divmod(int(values[0]), 100)
                assert values == [100 * index + start + k for k in range(ticks)]
                seen.append((index, start))

    assert sorted(seen) == wanted
