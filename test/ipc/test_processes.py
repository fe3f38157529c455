"""Frames between real processes, and their deaths."""

from __future__ import annotations

import pytest
import torch

from robocache_ros import ipc
from test.ipc.conftest import publish
from test.nodes.rig import until

on_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)


def shown(tick_ns):
    return {"tick_ns": tick_ns, "fused": [tick_ns], "front": [tick_ns % 256], "age_ns": [2**60 + tick_ns] * 2}


@on_both
def test_another_process_reads_what_was_published(writer, spawn, device):
    consumer = spawn("reader")
    publish(writer, [300], device)
    assert consumer.ask("latest") == shown(300)


def test_another_process_is_woken_by_a_frame(spawn, path):
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.tell("publish", 7)
    assert reader.wait(120.0).tick_ns == 7


def test_slot_leased_by_another_process_is_kept_also_when_others_are_killed(writer, spawn):
    consumer, killed = spawn("reader"), spawn("reader")
    publish(writer, [1])
    for reader in (consumer, killed):
        assert reader.ask("latest") == shown(1)
    killed.kill()
    until(lambda: writer.readers == 1)
    publish(writer, range(2, 40))
    assert consumer.ask("again") == {**shown(1), "overwritten": False}
    assert writer.overwritten == 0
    assert consumer.ask("latest") == shown(39)


def test_another_process_learns_that_it_was_overwritten(writer, spawn):
    consumer = spawn("reader")
    publish(writer, [1])
    consumer.ask("latest")
    second = spawn("reader")
    for tick in (2, 3):
        publish(writer, [tick])
        second.ask("latest")
    publish(writer, [4])
    assert consumer.ask("again")["overwritten"] is True
    assert writer.overwritten == 1


@on_both
def test_consumer_killed_while_it_leases_slots_gives_them_back(writer, spawn, device):
    killed = spawn("reader")
    for tick in (1, 2, 3):
        publish(writer, [tick], device)
        killed.ask("latest")
    killed.kill()
    until(lambda: writer.readers == 0)
    publish(writer, range(4, 20), device)
    assert writer.overwritten == 0


def test_frame_outlives_the_node_that_was_killed_in_the_middle_of_the_next(spawn, path):
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.ask("publish", 9)
    lease = reader.latest()
    assert node.ask("half", 10) == "half"
    node.kill()
    assert lease.tensors["fused"].unique().tolist() == [9]
    assert reader.latest() is None
    assert not reader.alive


def test_waiting_consumer_is_woken_by_the_nodes_death(spawn, path):
    node = spawn("writer")
    reader = ipc.Reader(path)
    node.process.kill()
    assert reader.wait(120.0) is None
    assert not reader.alive


@on_both
def test_connection_finds_the_restarted_node(spawn, path, device):
    connection = ipc.Connection(path, retry_s=0.0)
    generations = []
    for tick in (1, 2):
        node = spawn("writer", device=device)
        node.ask("publish", tick)
        reader = connection.connect()
        lease = reader.latest()
        assert (lease.tick_ns, lease.tensors["fused"].unique().tolist()) == (tick, [tick])
        assert reader.generation == node.hello["generation"]
        generations.append(reader.generation)
        node.kill()
        assert reader.latest() is None
        assert path.exists()  # a killed node leaves its socket
        assert connection.connect() is None
        del lease, reader
    assert generations[0] != generations[1]


def test_connection_without_a_node_tells_why_and_does_not_try_at_every_call(path, spawn):
    connection = ipc.Connection(path, retry_s=3600.0)
    assert connection.connect() is None
    assert "no node answers there" in connection.why
    spawn("writer")
    assert connection.connect() is None


def test_node_that_stops_sends_its_consumers_away(spawn):
    node = spawn("writer")
    consumer = spawn("reader")
    node.ask("close")
    assert consumer.ask("alive") is False


LONG_CYCLES = 400_000_000  # about 0.2 s: longer than a process needs to look


@on_gpu
def test_reader_waits_on_the_gpu_for_a_frame_that_is_announced_before_it_is_made(writer, spawn, device):
    consumer = spawn("reader")
    torch.cuda._sleep(LONG_CYCLES)
    publish(writer, [7], device)
    pending = not torch.cuda.current_stream().query()
    assert consumer.ask("latest") == shown(7)
    assert pending


@on_gpu
def test_slot_is_kept_until_the_readers_queued_work_is_done(writer, spawn, device):
    consumer = spawn("reader")
    publish(writer, [1], device)
    consumer.ask("latest")
    consumer.ask("read_slowly", LONG_CYCLES)
    publish(writer, range(2, 40), device)
    assert consumer.ask("late") == [1]
    assert writer.overwritten == 0


@on_gpu
def test_released_slot_is_used_again(writer, spawn, device):
    consumer = spawn("reader")
    for tick in range(1, 40):
        publish(writer, [tick], device)
        assert consumer.ask("latest") == shown(tick)
        consumer.ask("release")
    assert writer.overwritten == 0


@on_gpu
def test_process_that_sees_no_gpu_gets_an_error(writer, spawn):
    consumer = spawn("reader", CUDA_VISIBLE_DEVICES="")
    assert "this process sees none" in consumer.hello["refused"]


@on_gpu
def test_process_cannot_map_its_own_ring(writer, path):
    with pytest.raises(ipc.IpcUnavailableError, match="which cannot map its own handle"):
        ipc.Reader(path)


@pytest.mark.gpu
def test_rings_give_the_gpus_memory_back(path):
    field = ipc.Field("front", "uint8", (2**28,))
    ipc.Writer(path, [field], slots=2, device="cuda").close()

    def given_back():
        free = torch.cuda.mem_get_info()[0]
        ipc.Writer(path, [field], slots=2, device="cuda").close()
        return torch.cuda.mem_get_info()[0] == free

    # What is free counts for the entire GPU, on which other processes may begin and end meanwhile: once is enough.
    assert any(given_back() for _ in range(20))
