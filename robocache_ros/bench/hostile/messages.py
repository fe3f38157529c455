"""Damaged messages: each must become a sample or be refused in one line, soon and with little memory."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robocache_ros import ops
from robocache_ros.bench.hostile.seed_messages import Seed, seeds, serialize, transforms
from robocache_ros.decode import CloudPayload, Decoder, ImagePayload, decode_compressed, make_decoder
from robocache_ros.decode.cdr.common_types import COMMON
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.transforms import read_transforms
from robocache_ros.engine.backends.media_tensors import borrow
from robocache_ros.errors import RoboCacheError

WORDS = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF8)
SHOWN = 10  # exceptions that are spelt out
TEXT_LIMIT = 200


def run(count: int, seed: int = 0) -> dict[str, Any]:
    """Decode damaged messages of every supported kind, up to the tensor that a stream requires.

    Args:
        count: number of messages.
        seed: seed of the damage; the same seed gives the same messages.

    Returns:
        messages, accepted, refused (by cause), seconds, slowest_ms (of the processor) and slowest (its kind),
        memory_mib (peak above the start), unfit_texts (errors that are not one short printable line) and exceptions
        (of any other class).
    """
    report = _Report()
    rng = random.Random(seed)
    targets = [*_targets(), ("/tf_static", [transforms()], read_transforms), *_definitions()]
    logging.getLogger("PIL").setLevel(logging.ERROR)
    for _, messages, accept in targets:  # one-time imports and allocations are not part of the cost of a message
        for message in messages:
            report.watch("warm-up", accept, message)
    report.restart()
    started = time.perf_counter()
    for _ in range(count):
        name, messages, accept = targets[rng.randrange(len(targets))]
        report.watch(name, accept, damaged(rng.choice(messages), rng))
    return report.summary(count, time.perf_counter() - started)


def damaged(message: bytes, rng: random.Random) -> bytes:
    """The message, altered in one of seven ways."""
    data, kind = bytearray(message), rng.randrange(7)
    if kind == 0:
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        place = rng.randrange(max(len(data) // 4, 1)) * 4
        data[place : place + 4] = rng.choice(WORDS).to_bytes(4, rng.choice(("little", "big")))
    elif kind == 2:
        del data[rng.randrange(len(data)) :]
    elif kind == 3:
        data[4:] = rng.randbytes(rng.randrange(200))
    elif kind == 4:
        start, stop = sorted(rng.randrange(len(data)) for _ in range(2))
        data[rng.randrange(len(data)) : 0] = data[start:stop] * rng.randint(1, 20)
    elif kind == 5:
        place = rng.randrange(len(data))
        data[place : place + rng.randint(1, 40)] = b"\n[ERROR] \x1b[31mforged\xe2\x80\xae"[: rng.randint(1, 20)]
    elif len(data) > 1:
        data[1] ^= 1  # the byte order
    return bytes(data)


def _targets() -> list[tuple[str, list[bytes], Callable[[bytes], Any]]]:
    targets: list[tuple[str, list[bytes], Callable[[bytes], Any]]] = []
    for one in seeds():
        messages = list(one.messages)
        if one.stream.names:
            names = [f"joint_{i}" for i in range(900)]
            messages += [serialize(one.stream.type, {"name": [*one.stream.names, *names], "position": [0.0] * 903})]
        targets.append((f"{one.stream.type}.{one.stream.paths[0]}", messages, _acceptor(one)))
    return targets


def _acceptor(seed: Seed) -> Callable[[bytes], Any]:
    decoder: Decoder = make_decoder(seed.stream)
    stream = seed.stream

    def accept(data: bytes) -> Any:
        value = decoder.decode_cdr(data).value
        if isinstance(value, ImagePayload):
            image = decode_compressed(value)
            layout = {name: getattr(image, name) for name in ("encoding", "width", "height", "step", "big_endian")}
            return ops.convert_image(borrow(image.data), **layout, size=(4, 6))
        if isinstance(value, CloudPayload):
            grid = stream.voxels
            assert grid
            names = ("width", "height", "point_step", "row_step", "fields", "big_endian")
            return ops.voxelize_cloud_bytes(
                borrow(value.data),
                **{name: getattr(value, name) for name in names},
                grid_min=grid.origin_m,
                voxel_size=grid.size_m,
                grid_size=grid.shape,
                mode=grid.reduce,
                features=grid.features,
            )
        return value

    return accept


def _definitions() -> list[tuple[str, list[bytes], Callable[[bytes], Any]]]:
    texts = [text.encode() for text in COMMON.values()]
    nested = "=" * 80 + "\nMSG: a/B\nC[64] c\n" + "=" * 80 + "\nMSG: a/C\nfloat64 x\nuint8[] y\nstring<=5 z"
    texts.append(f"B[64] b\n{nested}".encode())
    return [("definition", texts, lambda data: message_type("a/msg/A", {"a/msg/A": data.decode("utf-8", "replace")}))]


class _Report:
    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.exceptions: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        """Discard the measurements so far, including the peak of the memory."""
        self.slowest, self.slowest_s, self.unfit, self.accepted = "", 0.0, 0, 0
        self.refused.clear()
        self.exceptions.clear()
        Path("/proc/self/clear_refs").write_text("5")
        self._before_kib = _status_kib("VmRSS")

    def watch(self, name: str, accept: Callable[[bytes], Any], data: bytes) -> None:
        """Note whether a message is accepted, and how long that takes."""
        began = time.process_time()
        try:
            accept(data)
            self.accepted += 1
        except RoboCacheError as error:
            self.refused[getattr(error, "cause", "other")] += 1
            text = str(error)
            self.unfit += len(text) >= TEXT_LIMIT or not text.isprintable()
        except Exception as error:  # what this is all about
            self.exceptions[f"{name}: {error!r}"[:TEXT_LIMIT]] += 1
        took = time.process_time() - began
        if took > self.slowest_s:
            self.slowest, self.slowest_s = name, took

    def summary(self, count: int, seconds: float) -> dict[str, Any]:
        """The result of `run`."""
        return {
            "messages": count,
            "accepted": self.accepted,
            "refused": dict(self.refused.most_common()),
            "seconds": round(seconds, 1),
            "slowest_ms": round(1e3 * self.slowest_s, 1),
            "slowest": self.slowest,
            "memory_mib": round((_status_kib("VmHWM") - self._before_kib) / 1024, 1),
            "unfit_texts": self.unfit,
            "exceptions": dict(self.exceptions.most_common(SHOWN)),
        }


def _status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
