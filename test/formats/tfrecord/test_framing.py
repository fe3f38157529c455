from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.rlds.tfrecord import FRAME_BYTES, RecordWriter, read_records

RECORDS = [b"first", b"", b"third" * 300_000]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    writer = RecordWriter(tmp_path / "records")
    for record in RECORDS:
        writer.write(len(record), [record[:3], record[3:]])
    writer.close()
    return writer.path


def changed(path: Path, change: Callable[[bytearray], object]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def flip(at: int) -> Callable[[bytearray], object]:
    return lambda data: data.__setitem__(at, data[at] ^ 1)


def test_records_are_read_as_they_were_written(written: Path) -> None:
    assert list(read_records(written)) == RECORDS


def test_a_record_costs_16_bytes_more_than_its_data(written: Path) -> None:
    assert written.stat().st_size == sum(map(len, RECORDS)) + FRAME_BYTES * len(RECORDS)


# The first bytes of a file that TensorFlow wrote: bridge_dataset of Open X-Embodiment.
def test_a_length_is_written_as_tensorflow_writes_it(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records")
    writer.write(138818, [bytes(138818)])
    writer.close()
    assert writer.path.read_bytes()[:12] == bytes.fromhex("421e02000000000071db8513")


def test_a_record_that_is_shorter_than_announced_is_not_written_silently(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records")
    with pytest.raises(ValueError, match="record 0 has 2 bytes, not 3"):
        writer.write(3, [b"ab"])
    writer.close()


def test_gzip_is_recognized_by_its_first_bytes(written: Path) -> None:
    written.write_bytes(gzip.compress(written.read_bytes()))
    assert list(read_records(written)) == RECORDS


def test_a_length_that_begins_like_gzip_is_a_length(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records")
    writer.write(0x8B1F, [bytes(0x8B1F)])
    writer.close()
    assert list(read_records(writer.path)) == [bytes(0x8B1F)]


def test_a_file_without_records_has_none(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert list(read_records(tmp_path / "empty")) == []


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        (0, "record 0: its length is damaged"),
        (9, "record 0: its length is damaged"),
        (14, "record 0: its checksum"),
        (-1, "record 2: its checksum"),
    ],
)
def test_damage_is_named_with_its_record(written: Path, at: int, problem: str) -> None:
    with pytest.raises(RoboCacheError, match=problem):
        list(read_records(changed(written, flip(at))))


@pytest.mark.parametrize("left_out", [1, 4, 10, 1_000_000, 1_500_004, 1_500_008])
def test_a_file_that_is_cut_off_is_named(written: Path, left_out: int) -> None:
    with pytest.raises(RoboCacheError, match=r"record 2: .*get the file again"):
        list(read_records(changed(written, lambda data: data.__delitem__(slice(-left_out, None)))))


@pytest.mark.parametrize("damage", [flip(40), lambda data: data.__delitem__(slice(-30, None))])
def test_damaged_gzip_data_is_named(written: Path, damage: Callable[[bytearray], object]) -> None:
    written.write_bytes(gzip.compress(written.read_bytes()))
    with pytest.raises(RoboCacheError, match=r"record \d: .*get the file again"):
        list(read_records(changed(written, damage)))


def test_a_record_above_the_limit_is_refused_before_it_is_read(written: Path) -> None:
    with pytest.raises(RoboCacheError, match="record 2: 1,500,000 bytes; at most 10 are read"):
        list(read_records(written, limit=10))
