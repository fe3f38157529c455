"""Damaged recordings: each is read like the undamaged one, refused in one line, or read with the difference stated."""

from __future__ import annotations

import hashlib
import multiprocessing
import resource
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import UNCHECKED, Bag
from robocache_ros.bench.hostile.damage import DAMAGES, VARIANTS, Recording, damaged, fusion_spec, make
from robocache_ros.errors import RoboCacheError

MAX_S = 10
MAX_GROWTH_KIB = 1 << 20
LINE = 200  # characters of an error, less the path of the recording
GOOD = ("identical", "refused", "stated")
NO_CHECKSUM = "stated (no checksums)"  # a message or its time was altered, and its integrity is stated as unknown
BAD = ("unstated", "long error", "traceback", "hang", "memory")


@dataclass(frozen=True)
class Reading:
    """The result of reading a recording."""

    messages: tuple[tuple[str, int, bytes], ...]
    frames: str  # digest of the fused ticks; an error's text where there are none
    counters: str
    notes: tuple[str, ...]
    integrity: str


@dataclass(frozen=True)
class Case:
    """One damaged recording."""

    variant: str
    damage: str
    seed: int


class _TookTooLongError(BaseException):
    pass


def read(path: Path) -> Reading:
    """Read a recording and fuse it."""
    with Bag(path) as bag:
        messages = tuple((m.topic, m.log_ns, bytes(m.data)) for m in bag.messages())
        digest = hashlib.sha256()
        try:
            run = BagRun(bag, fusion_spec(), trim=False)
            for part in run.frames():
                for array in (part.ticks_ns, part.valid, part.fused.numpy()):
                    digest.update(array.tobytes())
            frames, counters = digest.hexdigest(), str(run.counters)
        except RoboCacheError as error:
            frames, counters = f"refused: {error}", ""
        return Reading(messages, frames, counters, tuple(bag.notes), bag.integrity)


def judge(recording: Recording, expected: Reading, data: bytes) -> tuple[str, str]:
    """The outcome for a damaged recording: a word of GOOD or BAD or NO_CHECKSUM, and the text that goes with it."""
    recording.file.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _limited():
            found = read(recording.path)
    except RoboCacheError as error:
        text = str(error).replace(str(recording.path.parent), "")
        return ("refused" if len(text) <= LINE and text.isprintable() else "long error"), text
    except _TookTooLongError:
        return "hang", f"{MAX_S} s"
    except BaseException:  # what a user would see as a traceback
        return "traceback", traceback.format_exc()
    finally:
        recording.file.write_bytes(recording.data)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > MAX_GROWTH_KIB:
        return "memory", ""
    return _compare(expected, found)


def _compare(expected: Reading, found: Reading) -> tuple[str, str]:
    same = found.messages == expected.messages and found.frames == expected.frames
    if same:
        return "identical", "; ".join(found.notes)
    if found.frames.startswith("refused: "):
        return "refused", found.frames
    if set(found.notes) - set(expected.notes):
        long = [note for note in found.notes if len(note) > LINE or not note.isprintable()]
        return ("long error", long[0]) if long else ("stated", "; ".join(found.notes))
    counts = [Counter(topic for topic, _, _ in reading.messages) for reading in (expected, found)]
    if found.integrity == UNCHECKED and counts[0] == counts[1]:
        return NO_CHECKSUM, ""
    return "unstated", f"{len(found.messages)} of {len(expected.messages)} messages, frames {found.frames[:12]}"


@contextmanager
def _limited() -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TookTooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Judge:
    """Damages recordings in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self._recordings = {v: make(v, folder / f"v{index}") for index, v in enumerate(VARIANTS)}
        # The result of each variant before it is damaged.
        self.undamaged: dict[str, Reading] = {
            variant: read(recording.path) for variant, recording in self._recordings.items()
        }

    def __call__(self, case: Case) -> tuple[str, str]:
        """See `judge`."""
        recording = self._recordings[case.variant]
        return judge(recording, self.undamaged[case.variant], damaged(recording.data, case.damage, case.seed))


def cases(count: int) -> list[Case]:
    """`count` cases, evenly over variants and kinds of damage."""
    pairs = [(variant, damage) for variant in VARIANTS for damage in DAMAGES]
    return [Case(*pairs[number % len(pairs)], number // len(pairs)) for number in range(count)]


_judge: Judge | None = None


def _start(folder: str) -> None:
    global _judge  # one for each worker process
    _judge = Judge(Path(tempfile.mkdtemp(dir=folder)))


def _work(case: Case) -> tuple[Case, str, str]:
    if _judge is None:
        raise AssertionError("the worker has not started")
    return (case, *_judge(case))


def run(count: int, workers: int = 2) -> dict[str, Any]:
    """Damage `count` recordings and count the outcomes.

    Returns:
        `rows`: by variant, how often each outcome came; `failures`: up to 20 cases with an outcome that must not be.
    """
    table: dict[str, Counter[str]] = {variant: Counter() for variant in VARIANTS}
    failures: list[dict[str, Any]] = []
    noted = 0
    with (
        tempfile.TemporaryDirectory(prefix="robocache-hostile-") as folder,  # the pool ends its workers without cleanup
        multiprocessing.get_context("spawn").Pool(workers, _start, (folder,)) as pool,
    ):
        results = pool.imap_unordered(_work, cases(count))
        for _ in range(count):
            case, outcome, text = results.next(timeout=60)  # a worker that hangs in C ends the run
            table[case.variant][outcome] += 1
            noted += outcome == "identical" and bool(text)
            if outcome in BAD and len(failures) < 20:
                failures.append({"case": [case.variant, case.damage, case.seed], "outcome": outcome, "said": text})
    rows = [
        {"variant": variant, **{word: counts[word] for word in (*GOOD, NO_CHECKSUM, *BAD)}}
        for variant, counts in table.items()
    ]
    return {"count": count, "identical_with_a_note": noted, "rows": rows, "failures": failures}
