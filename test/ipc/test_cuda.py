"""Frames on the GPU, between real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Spawn = Callable[..., Any]
Eventually = Callable[[Callable[[], bool]], None]
LONG_CYCLES = 400_000_000  # about 0.2 s: longer than a process needs to look


@pytest.fixture
def values(peer_frames: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    return lambda tick_ns: peer_frames["values"](tick_ns, "cuda")


@pytest.fixture
def writer(make_writer: Callable[..., ipc.Writer], peer_frames: dict[str, Any]) -> ipc.Writer:
    return make_writer(peer_frames["FIELDS"], slots=3, device="cuda")


def shown(tick_ns: int) -> dict[str, Any]:
    return {"tick_ns": tick_ns, "fused": [tick_ns], "front": [tick_ns % 256], "age_ns": [2**60 + tick_ns] * 2}


def test_another_process_reads_what_was_published(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(300, values(300))

    assert consumer.ask("latest") == shown(300)


def test_reader_waits_on_the_gpu_for_a_frame_that_is_announced_before_it_is_made(
    writer: ipc.Writer, spawn: Spawn, values: Any
) -> None:
    consumer = spawn("reader")
    torch.cuda._sleep(LONG_CYCLES)  # type: ignore[no-untyped-call]
    writer.publish(7, values(7))
    pending = not torch.cuda.current_stream().query()

    assert consumer.ask("latest") == shown(7)
    assert pending


def test_slot_is_kept_until_the_readers_queued_work_is_done(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    writer.publish(1, values(1))
    consumer.ask("latest")
    consumer.ask("read_slowly", LONG_CYCLES)
    for tick in range(2, 40):
        writer.publish(tick, values(tick))

    assert consumer.ask("late") == [1]
    assert writer.overwritten == 0


def test_released_slot_is_used_again(writer: ipc.Writer, spawn: Spawn, values: Any) -> None:
    consumer = spawn("reader")
    for tick in range(1, 40):
        writer.publish(tick, values(tick))
        assert consumer.ask("latest") == shown(tick)
        consumer.ask("release")

    assert writer.overwritten == 0


def test_consumer_killed_while_it_leases_slots_gives_them_back(
    writer: ipc.Writer, spawn: Spawn, values: Any, eventually: Eventually
) -> None:
    killed = spawn("reader")
    for tick in (1, 2, 3):
        writer.publish(tick, values(tick))
        killed.ask("latest")
    killed.kill()
    eventually(lambda: writer.readers == 0)
    for tick in range(4, 20):
        writer.publish(tick, values(tick))

    assert writer.overwritten == 0


def test_killed_and_restarted_node_is_mapped_anew(spawn: Spawn, path: Path) -> None:
    connection = ipc.Connection(path, retry_s=0.0)
    first = spawn("writer", device="cuda")
    reader = connection.connect()
    assert reader
    first.ask("publish", 1)
    lease = reader.latest()
    assert lease
    assert lease.tensors["fused"].unique().tolist() == [1]
    first.kill()
    assert reader.latest() is None
    del lease, reader
    second = spawn("writer", device="cuda")
    reader = connection.connect()
    assert reader
    second.ask("publish", 2)

    lease = reader.latest()
    assert lease
    assert lease.tensors["fused"].unique().tolist() == [2]


def test_process_that_sees_no_gpu_gets_an_error(writer: ipc.Writer, spawn: Spawn) -> None:
    consumer = spawn("reader", CUDA_VISIBLE_DEVICES="")

    assert "this process sees none" in consumer.hello["refused"]


def test_process_cannot_map_its_own_ring(writer: ipc.Writer, path: Path) -> None:
    with pytest.raises(ipc.IpcUnavailableError, match="which cannot map its own handle"):
        ipc.Reader(path)


def test_ring_beyond_the_gpus_memory_says_how_much_it_needs(path: Path) -> None:
    huge = ipc.Field("front", "uint8", (2**40,))

    with pytest.raises(RoboCacheError, match=r"no memory for a ring of 8388608\.0 MiB"):
        ipc.Writer(path, [huge], device="cuda")


def test_rings_give_the_gpus_memory_back(path: Path, make_writer: Callable[..., ipc.Writer]) -> None:
    field = ipc.Field("front", "uint8", (2**28,))
    ipc.Writer(path, [field], slots=2, device="cuda").close()

    def given_back() -> bool:
        free = torch.cuda.mem_get_info()[0]
        ipc.Writer(path, [field], slots=2, device="cuda").close()
        return torch.cuda.mem_get_info()[0] == free

    # What is free counts for the entire GPU, on which other processes may begin and end meanwhile: once is enough.
    assert any(given_back() for _ in range(20))
