"""How the recordings of an export are divided."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import shards as shard_module
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording, planned
from robocache_ros.exporter.shards import Shard


def divided(sizes: list[int], count: int) -> list[list[int]]:
    """The sizes of the recordings of each shard."""
    recordings = [PlannedRecording(Path(f"{number:04}.mcap")) for number in range(len(sizes))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_module, "size_of", lambda path: sizes[int(path.stem)])
        return [[sizes[int(r.path.stem)] for r in Shard(index, count).of(recordings)] for index in range(count)]


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 12))
def test_each_recording_is_in_one_shard_and_no_shard_is_larger_by_more_than_one_recording(
    sizes: list[int], count: int
) -> None:
    shards = divided(sizes, count)
    assert sorted(size for shard in shards for size in shard) == sorted(sizes)
    loads = [sum(max(size, 1) for size in shard) for shard in shards]
    assert max(loads) - min(loads) <= max([1, *sizes])


def test_recordings_of_one_size_are_dealt_in_turn() -> None:
    recordings = planned([f"{number}.mcap" for number in range(7)])  # without files, so of no size
    assert [r.path.stem for r in Shard(1, 3).of(recordings)] == ["1", "4"]


def test_large_recordings_are_spread() -> None:
    assert divided([1, 9, 1, 9, 1, 9], 3) == [[1, 9]] * 3


def test_the_parts_of_a_recording_are_in_one_shard() -> None:
    parts = [PlannedRecording(Path("a.mcap"), start=Moment(second, relative=True)) for second in range(4)]
    other = PlannedRecording(Path("b.mcap"))
    assert Shard(0, 2).of([*parts, other]) == tuple(parts)
    assert Shard(1, 2).of([*parts, other]) == (other,)


def test_a_shard_is_written_as_index_and_count() -> None:
    assert Shard.parse("31/32") == Shard(31, 32)
    assert str(Shard(31, 32)) == "31/32"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("32/32", "the shards of 32 are 0/32 to 31/32"),
        ("0/0", "use 1 to"),
        ("/32", "is not INDEX/COUNT"),
        ("-1/32", "is not INDEX/COUNT"),
        ("1/٣", "is not INDEX/COUNT"),
        ("1" * 5000 + "/2", "is not INDEX/COUNT"),
        ("1/999999", "use 1 to"),
    ],
)
def test_a_shard_that_does_not_exist_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(RoboCacheError, match=reason) as refused:
        Shard.parse(text)
    assert len(str(refused.value)) < 190
