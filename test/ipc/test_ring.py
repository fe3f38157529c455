"""Frames within one process and between real processes: when a reader sees one, what it gets, and deaths."""

from __future__ import annotations

import gc
import os
import socket

import pytest
import torch

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError
from test.ipc.conftest import publish
from test.ipc.peer import FIELDS, Half, values
from test.nodes.rig import until


def test_latest_is_the_newest_frame_whatever_the_clock_does(writer, reader):
    assert (reader.meta, reader.latest()) == ("columns", None)
    publish(writer, range(1, 8))
    before = reader.latest()
    assert before.tick_ns == 7
    assert reader.latest(before.sequence) is None
    publish(writer, [2])
    assert reader.latest(before.sequence).tick_ns == 2


def test_frame_is_not_read_before_it_is_announced_and_overwritten_if_it_never_is(writer, reader):
    publish(writer, [20])
    writer.fill(40, values(6))
    assert reader.latest().tick_ns == 20
    writer.announce()
    assert torch.equal(reader.latest().tensors["fused"], torch.full((2, 3), 6.0))
    writer.fill(60, values(5))
    publish(writer, range(80, 240, 20))
    assert reader.latest().tick_ns == 220


def test_reader_that_knows_the_period_warms_up_before_the_next_frame(writer, reader):
    warmed_up = []
    waited = []

    def warm_up():
        warmed_up.append(len(waited))
        publish(writer, [300_000_000])

    for tick_ns in (100_000_000, 200_000_000):
        publish(writer, [tick_ns])
        waited.append(reader.wait(60.0, warm_up=warm_up))
    waited.append(reader.wait(60.0, waited[-1].sequence, warm_up))  # a tenth of a second after the one before
    assert [lease.tick_ns for lease in waited if lease] == [100_000_000, 200_000_000, 300_000_000]
    assert warmed_up == [2]


def test_wait_gives_the_frame_after_the_last_one_or_ends_without(writer, reader):
    publish(writer, [1])
    first = reader.latest()
    assert reader.wait(0.01, first.sequence, lambda: pytest.fail("no period is known")) is None
    publish(writer, [2])
    second = reader.wait(60.0, first.sequence)
    assert second.tick_ns == 2
    assert reader.wait(0.01, second.sequence) is None


def test_frame_is_not_seen_before_it_is_complete(writer, reader):
    seen = []

    def interrupt():
        seen.append(reader.latest().tick_ns)
        raise KeyError("half a frame")

    publish(writer, [1])
    with pytest.raises(KeyError):
        writer.publish(2, {**values(-1), "age_ns": Half(interrupt)})
    assert [*seen, reader.latest().tick_ns] == [1, 1]


def test_reader_that_does_not_listen_does_not_stop_the_writer(writer, reader):
    publish(writer, range(1, 3000))  # more announcements than fit into a socket's buffer
    assert reader.latest().tick_ns == 2999


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**values(1), "fused": torch.zeros(3, 3)}, r"fused: expected \(2, 3\) float32, got \(3, 3\)"),
        ({name: value for name, value in values(1).items() if name != "age_ns"}, "age_ns: missing"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_name(writer, reader, given, message):
    with pytest.raises(RoboCacheError, match=message):
        writer.publish(1, given)
    assert reader.latest() is None


def test_second_node_of_the_same_name_is_refused(writer, path):
    with pytest.raises(RoboCacheError, match="is served by another node"):
        ipc.Writer(path, FIELDS)


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_that_has_not_started_is_no_error_of_the_system(path, killed):
    if killed:  # its socket stays
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(os.fspath(path))
    with pytest.raises(ipc.IpcUnavailableError) as refused:
        ipc.Reader(path)
    assert str(refused.value) == f"{path}: no node answers there yet; start the node, or check its name"


@pytest.mark.parametrize(
    ("device", "size", "message"),
    [
        ("cpu", 2**50, r"robocache-ring: 8589934592\.0 MiB of shared memory are not available"),
        pytest.param("cuda", 2**40, r"no ring of 8388608\.0 MiB", marks=pytest.mark.gpu),
    ],
    indirect=["device"],
)
def test_ring_beyond_the_memory_says_how_much_it_needs(path, device, size, message):
    with pytest.raises(RoboCacheError, match=message):
        ipc.Writer(path, [ipc.Field("front", "uint8", (size,))], device=device)


def test_closed_writer_leaves_no_socket(path):
    ipc.Writer(path, FIELDS).close()
    assert not path.exists()
    with pytest.raises(ipc.IpcUnavailableError, match="no node answers there"):
        ipc.Reader(path)


@pytest.mark.parametrize(
    "lease",
    [
        lambda first, reader, other: first,
        lambda first, reader, other: first.tensors["fused"][0],
        lambda first, reader, other: (reader.latest(), first.release())[0],
        lambda first, reader, other: (other.latest(), first.release())[0],
        lambda first, reader, other: (first, other.latest().release())[0],
    ],
    ids=["lease", "view of a tensor", "second lease", "second of two readers", "first of two readers"],
)
def test_slot_is_not_used_again_while_something_leases_it(writer, reader, path, lease):
    other = ipc.Reader(path)
    publish(writer, [1])
    kept = lease(reader.latest(), reader, other)
    gc.collect()
    publish(writer, range(2, 50))
    assert getattr(kept, "tensors", {"fused": kept})["fused"].unique().tolist() == [1]
    assert not getattr(kept, "overwritten", False)
    assert writer.overwritten == 0


def test_released_slot_is_used_again_under_its_tensors(writer, reader):
    publish(writer, [1])
    lease = reader.latest()
    lease.release()
    publish(writer, range(2, 5))
    assert lease.tensors["fused"].unique().tolist() == [4]


def test_forgotten_frames_give_their_slots_back(writer, reader):
    for tick in range(1, 9):
        publish(writer, [tick])
        assert reader.latest().tick_ns == tick
        gc.collect()
    assert writer.overwritten == 0


def test_writer_goes_on_when_every_slot_is_leased(writer, reader):
    leases = []
    for tick in range(1, 4):
        publish(writer, [tick])
        leases.append(reader.latest())
    publish(writer, [4])
    assert reader.latest().tick_ns == 4
    assert writer.overwritten == 1
    assert [one.overwritten for one in leases] == [True, False, False]  # the oldest is overwritten


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (None, ipc.OverwrittenError, "tick 1: its slot was overwritten while it was leased"),
        (KeyError("mine"), KeyError, "mine"),
    ],
)
def test_overwritten_reader_gets_an_error_on_leaving_unless_it_has_its_own(writer, reader, raised, expected, message):
    publish(writer, [1])
    others = []

    def read_too_long():
        with reader.latest():
            for tick in range(2, 5):
                publish(writer, [tick])
                others.append(reader.latest())
            if raised:
                raise raised

    with pytest.raises(expected, match=message):
        read_too_long()


def test_fields_start_on_aligned_offsets_and_their_description_reads_back_the_same():
    fields = (ipc.Field("fused", "float32", (4, 3)), ipc.Field("front", "uint8", (3, 5, 7)), FIELDS[-1])
    layout = ipc.RingLayout(fields, 8, "cuda", meta='{"rate_hz": 50}')
    assert layout.offsets == {"fused": 0, "front": 256, "age_ns": 0}
    assert (layout.slot_bytes, layout.host_bytes) == (512, 256)
    assert ipc.RingLayout.from_json(layout.to_json()) == layout


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("x", "complex64", (1,)), "x: dtype 'complex64' is not one of"),
        (("x", "uint8", (-1,)), "x: shape"),
        (("x", "bfloat16", (1,), True), "x: bfloat16"),
    ],
)
def test_impossible_field_is_named(field, message):
    with pytest.raises(RoboCacheError, match=message):
        ipc.Field(*field)


on_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)


def shown(tick_ns):
    return {"tick_ns": tick_ns, "fused": [tick_ns], "front": [tick_ns % 256], "age_ns": [2**60 + tick_ns] * 2}


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
