"""Runs several conversions of a recording in one pass: its messages are read once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.shared_reading import SharedReading
from robocache_ros.export.pieces.convert_recording import Conversion
from robocache_ros.export.pieces.progress import Advanced, Event, Progress
from robocache_ros.export.recordings.planned_recording import PlannedRecording


def run_together(
    bag: Bag, recording: PlannedRecording, conversions: Sequence[Conversion], progress: Progress | None
) -> list[BaseException | None]:
    """Run conversions of an open recording, each in a thread; return the error of each, None if it has none.

    Args:
        bag: the recording.
        recording: the recording, for the progress.
        conversions: of it.
        progress: called with the progress of the slowest conversion, and the ticks of all.
    """
    reading = SharedReading(bag, [conversion.reads for conversion in conversions])
    shares, ticks, lock = [0.0] * len(conversions), [0] * len(conversions), threading.Lock()

    def run(number: int) -> None:
        def tell(event: Event) -> None:
            if progress and isinstance(event, Advanced):
                with lock:
                    shares[number], ticks[number] = event.share, event.ticks
                    progress(Advanced(recording, min(shares), sum(ticks)))

        try:
            conversions[number].run(tell, lambda _read: reading.messages(number))
        finally:
            shares[number] = 1.0
            reading.leave(number)

    with ThreadPoolExecutor(len(conversions) + 1, "convert") as pool:
        pool.submit(reading.run)
        running = [pool.submit(run, number) for number in range(len(conversions))]
        try:
            wait(running)
        finally:  # also after Ctrl-C
            for number in range(len(conversions)):
                reading.leave(number)
    return [one.exception() for one in running]
