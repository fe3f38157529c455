from __future__ import annotations

from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.atomic import whole_folder


def dataset(folder: Path, content: str = "old") -> Path:
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(content)
    return folder


def test_the_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "dataset"
    with whole_folder(out) as folder:
        (folder / "data").mkdir()
        (folder / "data" / "a").write_text("x")
        assert not out.exists()
        assert folder.parent == out.parent  # the same file system: a rename is all it takes
    assert (out / "data" / "a").read_text() == "x"
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_exception(tmp_path: Path, error: type[BaseException]) -> None:
    def write_half() -> None:
        with whole_folder(tmp_path / "out") as folder:
            (folder / "a").write_text("x")
            raise error

    with pytest.raises(error):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    out = dataset(tmp_path / "out")
    with pytest.raises(RoboCacheError, match="exists"), whole_folder(out):
        pass
    assert (out / "meta" / "info.json").read_text() == "old"


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with whole_folder(tmp_path / "out") as folder:
        (folder / "a").touch()
    assert (tmp_path / "out" / "a").exists()


def test_overwrite_replaces_a_dataset(tmp_path: Path) -> None:
    out = dataset(tmp_path / "out")
    with whole_folder(out, overwrite=True) as folder:
        dataset(folder, "new")
    assert (out / "meta" / "info.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]


def test_a_failed_overwrite_keeps_the_old_dataset(tmp_path: Path) -> None:
    out = dataset(tmp_path / "out")
    with pytest.raises(ValueError, match="stop"), whole_folder(out, overwrite=True):
        raise ValueError("stop")
    assert (out / "meta" / "info.json").read_text() == "old"


def test_overwrite_spares_what_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    with pytest.raises(RoboCacheError, match="is no dataset"), whole_folder(tmp_path / "home", overwrite=True):
        pass
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(RoboCacheError, match="is a file"), whole_folder(tmp_path / "out", overwrite=True):
        pass
