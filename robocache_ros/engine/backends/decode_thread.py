"""Decodes the compressed images of a stream in a separate thread, so that one image cannot block the ticks.

Decoding starts when an image arrives. A tick that selects the image waits until it is decoded, so that a frame depends
on the messages alone. The wait is limited, so that no image can stop the output of the node: after `WAIT_S`, the image
is dropped and counted as `too_slow`, and so is an image that waits behind it. The limit applies only after the thread
has used `PROCESSOR_S` of processor time in this tick. The load of the machine alone therefore does not change which
images are used, up to the size that is decoded in that time. Within the limits of `decode_compressed` on pixels and
scans, only images of many megapixels take longer. A recording is fused without a thread and without a limit, because
no robot waits for it.
"""

from __future__ import annotations

import io
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from robocache_ros.decode.payloads import ImagePayload
from robocache_ros.engine.backends.interface import TooSlowError

WAIT_S = 0.05  # per tick; with a period of 20 ms, the output pauses for well under 100 ms
PROCESSOR_S = 0.02  # enough for a 1080p jpeg
AHEAD_BYTES = 64 * 2**20  # of decoded images not used yet; beyond it, images wait until a tick selects them
POLL_S = 0.005


class Job:
    """One image in the queue of the thread."""

    def __init__(self, payload: ImagePayload) -> None:
        self.payload: ImagePayload | None = payload  # None once it is decoded
        self.begun = False
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None


class _Queue:
    """State that the thread shares with its owner; the owner can be released while the thread is busy."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.changed = threading.Condition()
        self.stopped = False

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.jobs.clear()
            self.changed.notify()


class DecodeThread:
    """Decodes the images of one stream; the thread ends when this object is released.

    Args:
        name: name of the stream.
        decode: converts an image payload to what a tick uses; raises ValueError if it is corrupt.
        nbytes: returns the size of a result of `decode` in bytes.
    """

    def __init__(self, name: str, decode: Callable[[ImagePayload], Any], nbytes: Callable[[Any], int]) -> None:
        self._name = name
        self._decode = decode
        self._nbytes = nbytes
        self._queue = _Queue()
        self._clock: int | None = None  # clock of the thread's processor time; None until the first image
        self._waited_s = self._used_s = 0.0  # in this tick: wait of the tick, processor time of the thread meanwhile
        self._unused: set[Job] = set()
        weakref.finalize(self, self._queue.stop)

    @property
    def nbytes(self) -> int:
        """Size of the decoded images that no tick has used yet, in bytes."""
        return sum(self._nbytes(job.result) for job in self._unused if job.done.is_set() and job.error is None)

    def submit(self, payload: ImagePayload) -> Job:
        """Start decoding an image, unless enough decoded images are not used yet."""
        job = Job(payload)
        if self.nbytes < AHEAD_BYTES:
            self._enqueue(job)
        self._unused.add(job)
        return job

    def result(self, job: Job) -> Any:
        """The decoded image; raises ValueError if it is corrupt, TooSlowError past the limit of a tick."""
        if not job.done.is_set():
            self._wait(job)
        self._unused.discard(job)
        if job.error:
            raise job.error
        return job.result

    def discard(self, job: Job) -> None:
        """Discard an image; it is not decoded if its decoding has not started."""
        self._unused.discard(job)
        with self._queue.changed:
            if job in self._queue.jobs:
                self._queue.jobs.remove(job)

    def end_tick(self) -> None:
        """Reset the wait to zero for the next tick."""
        self._waited_s = self._used_s = 0.0

    def _wait(self, job: Job) -> None:
        with self._queue.changed:
            waiting = not job.begun
            if job in self._queue.jobs:
                self._queue.jobs.remove(job)
        if waiting:  # before the other images, which may never be selected
            self._enqueue(job, first=True)
        waited_s, used_s = self._waited_s, self._used_s
        begin_s, processor_s = time.monotonic(), self._processor_s()
        while not job.done.wait(POLL_S if self._may_wait() else 0.0):
            if not self._may_wait():
                raise TooSlowError(f"decoding it takes longer than {1e3 * WAIT_S:g} ms; publish smaller images")
            self._waited_s = waited_s + time.monotonic() - begin_s
            self._used_s = used_s + self._processor_s() - processor_s

    def _may_wait(self) -> bool:
        return self._waited_s < WAIT_S or self._used_s < PROCESSOR_S

    def _enqueue(self, job: Job, *, first: bool = False) -> None:
        if self._clock is None:
            name = f"decode {self._name}"
            thread = threading.Thread(target=_run, args=(self._queue, self._decode), name=name, daemon=True)
            thread.start()
            assert thread.ident is not None
            self._clock = time.pthread_getcpuclockid(thread.ident)
        with self._queue.changed:
            (self._queue.jobs.appendleft if first else self._queue.jobs.append)(job)
            self._queue.changed.notify()

    def _processor_s(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


def warm_up(decode: Callable[[ImagePayload], Any]) -> None:
    """Decode small images, so that the first image of a stream does not wait for the import of the decoders."""
    try:
        from PIL import Image
    except ImportError:
        return  # the first image of the stream is dropped, with a hint how to install the decoder
    for encoding in ("jpeg", "png"):
        file = io.BytesIO()
        Image.new("RGB", (64, 64)).save(file, encoding.upper())
        with suppress(ValueError):  # the stream's crop may be outside of such a small image
            decode(ImagePayload(np.frombuffer(file.getvalue(), np.uint8), encoding))


def _run(queue: _Queue, decode: Callable[[ImagePayload], Any]) -> None:
    while True:
        with queue.changed:
            while not queue.jobs and not queue.stopped:
                queue.changed.wait()
            if queue.stopped:
                return
            job = queue.jobs.popleft()
            job.begun = True
        assert job.payload is not None
        try:
            job.result = decode(job.payload)
        except Exception as error:  # raised again when the result is requested
            job.error = error
        job.payload = None
        job.done.set()
        del job  # its data must not stay alive until the next image
