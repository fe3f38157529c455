import os
import re
import sys
from pathlib import Path

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import enable_jit_cache
from robocache_ros.ops.cuda import kernels
from test import forked


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    monkeypatch.setattr(kernels, "_cache_directory", None)
    monkeypatch.setattr(kernels, "_cache_enabled", True)


def source(text="a", header="b", name="h.cuh"):
    return kernels.Source("x.cu", text, ((name, header),))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40] + b"\0" + b[41:], lambda b: b"", lambda b: b[:32]]
)
def test_a_corrupt_entry_is_ignored_and_replaced(tmp_path, damage):
    enable_jit_cache(tmp_path)
    kernels.store_cubin("k", b"machine code, some of it")
    entry = tmp_path / "k.cubin"
    entry.write_bytes(damage(entry.read_bytes()))
    assert kernels.load_cubin("k") is None
    kernels.store_cubin("k", b"again")
    assert kernels.load_cubin("k") == b"again"


def test_nothing_is_stored_when_disabled(tmp_path):
    enable_jit_cache(tmp_path)
    assert enable_jit_cache(enabled=False) is None
    kernels.store_cubin("k", b"code")
    assert kernels.load_cubin("k") is None
    assert not list(tmp_path.iterdir())


def test_the_directory_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ROBOCACHE_CACHE_DIR", raising=False)
    assert enable_jit_cache() == tmp_path / "robocache_ros"
    monkeypatch.setenv("ROBOCACHE_CACHE_DIR", str(tmp_path / "mine"))
    assert enable_jit_cache() == tmp_path / "mine"


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RoboCacheError, match="file cannot be written to"):
        enable_jit_cache(tmp_path / "file")


def test_a_disk_that_refuses_a_write_is_not_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROBOCACHE_CACHE_DIR", str(tmp_path / "file"))
    kernels.store_cubin("k", b"code")
    assert kernels.load_cubin("k") is None


def test_the_key_covers_everything_that_is_compiled():
    options, version = kernels.compile_options("sm_90", ("A=1",)), (13, 0)
    keys = [
        source().key(options, version),
        source(text="c").key(options, version),
        source(header="c").key(options, version),
        source(name="g.cuh").key(options, version),
        source().key(kernels.compile_options("sm_80", ("A=1",)), version),
        source().key(kernels.compile_options("sm_90", ("A=2",)), version),
        source().key(options, (12, 9)),
        *(source(*texts).key(options, version) for texts in (("ab", "c"), ("a", "bc"))),
    ]
    assert len(set(keys)) == len(keys)
    assert source().key(options, version) == keys[0]
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_a_missing_kernel_is_named():
    with pytest.raises(RoboCacheError, match=r"none\.cu"):
        kernels.load_source("none.cu")


WRITE_AND_READ = """
import sys
from robocache_ros.ops.cuda import kernels

kernels.enable_jit_cache(sys.argv[1])
for turn in range(100):
    kernels.store_cubin("k", sys.argv[2].encode() * (100_000 + turn))
    found = kernels.load_cubin("k")
    assert found is not None and len(set(found)) == 1, turn
"""


def test_many_processes_write_one_entry_and_read_it_whole(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(kernels.__file__).parents[3])}
    command = [sys.executable, "-c", WRITE_AND_READ, str(tmp_path)]
    processes = [forked.Popen([*command, letter], env=environment) for letter in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["k.cubin"]


def test_an_older_gpu_is_refused_with_its_capability(monkeypatch):
    monkeypatch.setattr(kernels, "import_cupy_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(RoboCacheError, match=r"cuda:1, Tesla T4, has compute capability 7.5; .* 8.0 or newer"):
        kernels._load("resample/blend.cu", (), 1)
