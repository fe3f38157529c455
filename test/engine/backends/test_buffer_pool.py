"""Memory for messages: a block is used again when nothing refers to its contents, and never before."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros.buffer_pool import BufferPool
from robocache_ros.engine import FusionEngine
from robocache_ros.engine.backends import gpu as upload_queue_module
from robocache_ros.engine.backends.gpu import UploadQueue


@pytest.fixture
def pool():
    return BufferPool(lambda nbytes: np.zeros(nbytes, np.uint8), most=2)


def start(array):
    return array.ctypes.data


def test_memory_is_used_again(pool):
    first = start(pool.acquire(100))
    assert start(pool.acquire(80)) == first
    assert pool.nbytes == (100,)


@pytest.mark.parametrize(
    "refer",
    [
        lambda array: array[10:20],
        lambda array: array.data.toreadonly()[10:20],
        lambda array: np.frombuffer(array.data.toreadonly(), np.uint8, 5, 3)[1:],
        lambda array: torch.from_numpy(array[4:]),
    ],
)
def test_a_view_of_a_part_keeps_the_block_in_use(pool, refer):
    array = pool.acquire(100)
    at, part = start(array), refer(array)
    del array
    other = pool.acquire(100)
    assert start(other) != at
    del part
    assert start(pool.acquire(100)) == at


def test_new_memory_is_not_kept_where_all_blocks_are_in_use(pool):
    arrays = [pool.acquire(100) for _ in range(3)]
    assert len({start(array) for array in arrays}) == 3
    assert pool.nbytes == (100, 100)
    assert [pool.address(array[30:40]) for array in arrays] == [*(start(array) + 30 for array in arrays[:2]), None]


def test_blocks_are_reserved_and_larger_ones_replace_those_that_are_too_small(pool):
    for nbytes in (64, 32):
        pool.reserve(nbytes)
        assert pool.nbytes == (64, 64)
    larger = [pool.acquire(100), pool.acquire(100)]
    assert len(larger) == 2
    assert pool.nbytes == (100, 100)


@pytest.fixture
def copies(monkeypatch):
    """Upload queues of the host: the events of copies are complete once `complete` is set; `made` are the copies."""
    state = SimpleNamespace(complete=False, made=[])
    event = SimpleNamespace(query=lambda: state.complete, synchronize=lambda: None)
    monkeypatch.setattr(upload_queue_module, "pinned", lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8))
    monkeypatch.setattr(upload_queue_module, "new_event", lambda _: event)
    monkeypatch.setattr(upload_queue_module, "record_event", lambda *_: None)
    monkeypatch.setattr(upload_queue_module, "new_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(upload_queue_module, "copy_async", lambda *arguments: state.made.append(arguments[:3]))
    return state


def test_a_block_that_a_copy_reads_is_in_use_until_the_copy_is_complete(pool, copies):
    uploads = UploadQueue(torch.device("cpu"), 4096)
    buffer = pool.acquire(100)
    at, payload = start(buffer), buffer[8:58]
    ticket = uploads.send_from(pool.address(payload), payload, 1234)
    del buffer, payload
    uploads.retire()
    assert ticket == 0
    assert copies.made == [(1234, at + 8, 50)]
    other = pool.acquire(100)
    assert start(other) != at

    copies.complete = True
    uploads.retire()

    assert start(pool.acquire(100)) == at


def test_samples_in_buffers_that_are_used_again_are_not_overwritten_in_the_cpu_backend(mixture):
    rng, spec = np.random.default_rng(3), mixture.spec()
    assert mixture.compare(FusionEngine(spec), FusionEngine(spec), mixture.messages(rng), rng) > 30
