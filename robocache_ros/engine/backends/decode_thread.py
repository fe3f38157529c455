"""Decoding of compressed images in a thread of their stream, so that one image cannot hold up the ticks.

Decoding starts when an image arrives, and a tick that selects the image waits until it is done: a frame stays a
function of the messages alone. The wait is limited, so that no image silences the node: after `WAIT_S` an image is
dropped and counted as `too_slow`, and so is one that waits behind it. The limit applies only once the thread has used
`PROCESSOR_S` of processor time in this tick: a busy machine alone does not change which images are used, up to the size
that is decoded in that time. Within the limits of `decode_compressed` on pixels and scans only images of many
megapixels take longer. A recording is fused without a thread and without a limit: no one waits for it.
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

from robocache_ros.decode import ImagePayload
from robocache_ros.engine.backends.interface import TooSlowError

WAIT_S = 0.05  # per tick; with a period of 20 ms the silence stays well under 100 ms
PROCESSOR_S = 0.02  # enough for a 1080p jpeg
AHEAD_BYTES = 64 * 2**20  # of decoded images that no tick has used yet; past it, images wait until one selects them
POLL_S = 0.005


class Job:
    """One image on its way through the thread."""

    def __init__(self, payload: ImagePayload) -> None:
        self.payload: ImagePayload | None = payload  # None once it is decoded
        self.begun = False
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None


class _Queue:
    """What the thread shares with its owner; the owner can go while the thread is still busy."""

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
        name: of the stream.
        decode: image payload -> what a tick uses; ValueError where it is corrupt.
        nbytes: bytes of what `decode` returns.
    """

    def __init__(self, name: str, decode: Callable[[ImagePayload], Any], nbytes: Callable[[Any], int]) -> None:
        self._name = name
        self._decode = decode
        self._nbytes = nbytes
        self._queue = _Queue()
        self._clock: int | None = None  # of the thread's processor time; None until the first image
        self._waited_s = self._used_s = 0.0  # in the present tick: by the tick, and by the thread meanwhile
        self._unused: set[Job] = set()
        weakref.finalize(self, self._queue.stop)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded images that no tick has used yet."""
        return sum(self._nbytes(job.result) for job in self._unused if job.done.is_set() and job.error is None)

    def submit(self, payload: ImagePayload) -> Job:
        """Start to decode an image, unless enough of them are decoded ahead of their use."""
        job = Job(payload)
        if self.nbytes < AHEAD_BYTES:
            self._enqueue(job)
        self._unused.add(job)
        return job

    def result(self, job: Job) -> Any:
        """What became of an image; its ValueError where it is corrupt, TooSlowError past the limit of a tick."""
        if not job.done.is_set():
            self._wait(job)
        self._unused.discard(job)
        if job.error:
            raise job.error
        return job.result

    def discard(self, job: Job) -> None:
        """Forget an image; it is not decoded if that has not begun."""
        self._unused.discard(job)
        with self._queue.changed:
            if job in self._queue.jobs:
                self._queue.jobs.remove(job)

    def end_tick(self) -> None:
        """Begin the wait of the next tick at zero."""
        self._waited_s = self._used_s = 0.0

    def _wait(self, job: Job) -> None:
        with self._queue.changed:
            waiting = not job.begun
            if job in self._queue.jobs:
                self._queue.jobs.remove(job)
        if waiting:  # in front of the others, which may never be selected
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
    """Decode small images, so that the first image of a stream does not pay for the import of the decoders."""
    try:
        from PIL import Image
    except ImportError:
        return  # the first image of the stream is dropped with the way to install it
    for encoding in ("jpeg", "png"):
        file = io.BytesIO()
        Image.new("RGB", (64, 64)).save(file, encoding.upper())
        with suppress(ValueError):  # a crop of the stream may be outside of so small an image
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
        except Exception as error:  # raised again where the result is asked for
            job.error = error
        job.payload = None
        job.done.set()
        del job  # what it holds must not live until the next image
