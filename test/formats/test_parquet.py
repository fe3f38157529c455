"""Parts of parquet files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robocache_ros.formats.parquet import groups_around, read_parquet


@pytest.mark.parametrize(
    ("first", "stop", "expected"),
    [(7, 9, (0, 20)), (19, 20, (0, 20)), (18, 22, (0, 40)), (46, 48, (40, 50)), (0, 50, (0, 50))],
)
def test_rows_are_read_with_the_row_groups_around_them(tmp_path, first, stop, expected):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"row": list(range(50))}), path, row_group_size=5)
    begin, end = groups_around(path, first, stop)
    assert (begin, end) == expected
    assert read_parquet(path, ["row"], rows=(begin, end))["row"].to_pylist() == list(range(begin, end))


def test_a_file_that_is_written_again_is_read_anew(tmp_path):
    path = tmp_path / "rows.parquet"
    for rows in ([1, 2, 3], [4, 5]):
        pq.write_table(pa.table({"row": rows}), path, row_group_size=1)
        assert read_parquet(path)["row"].to_pylist() == rows
