from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import socket_path


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return tmp_path


def test_folder_is_the_users_alone(runtime: Path) -> None:
    assert socket_path("/fusion").parent.stat().st_mode & 0o777 == 0o700


def test_without_a_runtime_folder_it_lies_under_the_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert socket_path("/fusion").parent == tmp_path / f"robocache-{os.geteuid()}"


def test_nodes_and_domains_have_sockets_of_their_own() -> None:
    paths = {socket_path("/a/fusion"), socket_path("/b/fusion"), socket_path("/a/fusion", domain=8)}

    assert len(paths) == 3


def test_domain_comes_from_the_environment() -> None:
    assert socket_path("/fusion") == socket_path("/fusion", domain=7)


def test_long_names_still_fit_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(dir="/tmp") as short:  # pytest's own folder can be too long for any socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        paths = {socket_path("/" + "n" * 300 + suffix) for suffix in "ab"}

    assert len(paths) == 2
    assert max(len(os.fsencode(path)) for path in paths) <= 107


def test_folder_that_others_may_enter_is_refused(runtime: Path) -> None:
    (runtime / "robocache").mkdir()
    (runtime / "robocache").chmod(0o755)

    with pytest.raises(RoboCacheError, match="is not a folder of only this user"):
        socket_path("/fusion")


def test_link_in_the_folders_place_is_refused(runtime: Path) -> None:
    (runtime / "elsewhere").mkdir(mode=0o700)
    (runtime / "robocache").symlink_to(runtime / "elsewhere")

    with pytest.raises(RoboCacheError, match="is not a folder of only this user"):
        socket_path("/fusion")
