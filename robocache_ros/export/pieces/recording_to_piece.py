"""Makes the pieces of a recording: one for each dataset of an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from functools import partial
from pathlib import Path

from torch.cuda import OutOfMemoryError

from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.checksums import Checksums, unread_files
from robocache_ros.export.episodes.boundaries import EpisodesDropped
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.pieces import recording_file
from robocache_ros.export.pieces.any_pieces import AnyPieces, PieceFailure
from robocache_ros.export.pieces.convert_recording import Conversion, PartsDropped
from robocache_ros.export.pieces.piece_writer import PieceWriter
from robocache_ros.export.pieces.plan import Plan, engine
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.pieces.run_together import run_together
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.remote_error import RemoteError
from robocache_ros.remote.store_errors import StoreError

PIECE = ".piece"  # a note of a shared folder: the name of the piece, under its key with `unread_files`
_KEY = re.compile(r"[0-9a-f]{64}")
_TARGET_ERRORS = (ENOSPC, EDQUOT, EFBIG, EROFS)  # errors that would also affect all other recordings


@dataclass(frozen=True)
class Outcome:
    """The outcome for a recording in a dataset: its piece, or the error."""

    recording: PlannedRecording
    piece: Path | None = None
    reused: bool = False  # an earlier export made the piece, or recorded the error
    replaced: bool = False  # the piece of an earlier export was damaged, and was made again
    error: str = ""
    dropped: bool = False  # the error is the one that `on_invalid: drop` asks for
    lasting: bool = False  # the error is one of the recording itself: the next export would have it too


@dataclass(frozen=True)
class _Work:
    """A recording, and what making its pieces needs."""

    recording: PlannedRecording
    store: AnyPieces
    checksums: Checksums
    progress: Progress | None


def make_pieces_of(
    recording: PlannedRecording,
    plans: Sequence[Plan],
    store: AnyPieces,
    *,
    resumed: bool = False,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Make the piece of a recording for each plan, or find an existing one.

    Missing pieces are made in one pass over the recording. Each has the bytes that it has if it is made alone.

    Args:
        recording: a recording of all plans.
        plans: of the datasets.
        store: the store of the pieces.
        resumed: whether pieces of an earlier export exist. Only in this case, the function waits for the checksums of
            the recording, which name its pieces, before the conversion. A shared store notes the pieces of a recording
            whose files have not changed since, so that they are found without reading it.
        progress: called with the progress of the recording.

    Errors:
        OSError: an error of the target, such as a full disk. Errors of the recording itself are in the outcomes.
    """
    outcomes: dict[int, Outcome] = {}
    if resumed and (known := _known(recording, plans, store)):
        return known
    try:
        with file_errors(recording.path, but=_TARGET_ERRORS), Checksums(recording.path) as checksums:
            engine()  # part of the keys; computed here beside the checksums, not when encoders have ended
            for number, plan in enumerate(plans) if resumed else ():
                key = plan.key(recording, _named_by(recording, checksums))
                if found := _earlier(recording, store, key):
                    outcomes[number] = found
                    _note(recording, plan, store, checksums, key)
            missing = [number for number in range(len(plans)) if number not in outcomes]
            work = _Work(recording, store, checksums, progress)
            # Kernels of several threads would share the buffers of a GPU.
            if len(missing) > 1 and all(plans[number].device == "cpu" for number in missing):
                outcomes |= _make_together(work, {number: plans[number] for number in missing})
            for number in missing:
                if number not in outcomes:
                    outcomes[number] = _outcome(recording, partial(_make, work, plans[number]))
            for number in missing:
                _record(work, plans[number], outcomes[number])
    except StoreError:  # of the bucket of the pieces, or of the credentials: it would affect all other recordings
        raise
    except RoboCacheError as error:  # of the files, which all pieces are made from
        return [outcomes.get(number) or Outcome(recording, error=str(error)) for number in range(len(plans))]
    return [outcomes[number] for number in range(len(plans))]


def _known(recording: PlannedRecording, plans: Sequence[Plan], store: AnyPieces) -> list[Outcome]:
    """Return the outcomes of earlier exports that are found without reading the recording, if all are, else nothing."""
    try:
        files = unread_files(recording.path)
        keys: list[str | None] = [plan.key(recording, files) for plan in plans]
        if not is_url(recording.path):
            keys = [store.noted(f"{key}{PIECE}") for key in keys]
    except (OSError, RoboCacheError):
        return []
    found = [_earlier(recording, store, key) if key and _KEY.fullmatch(key) else None for key in keys]
    outcomes = [outcome for outcome in found if outcome]
    return outcomes if len(outcomes) == len(plans) else []


def _named_by(recording: PlannedRecording, checksums: Checksums) -> recording_file.Files:
    """Return the files in the key of a piece: of a URL with their versions, so that they are not downloaded for it."""
    return checksums.unread if is_url(recording.path) else checksums.result()


def _note(recording: PlannedRecording, plan: Plan, store: AnyPieces, checksums: Checksums, key: str) -> None:
    if store.shared:
        store.note(plan.key(recording, checksums.unread) + PIECE, key)


def _outcome(recording: PlannedRecording, make: Callable[[], tuple[Path, bool]]) -> Outcome:
    """Return the outcome of making a piece."""
    try:
        with file_errors(recording.path, but=_TARGET_ERRORS):
            piece, replaced = make()
            return Outcome(recording, piece, replaced=replaced)
    except OutOfMemoryError:
        where = printable(recording.path)
        return Outcome(recording, error=f"{where}: not enough GPU memory; use fewer --jobs, or --device cpu")
    except StoreError:
        raise
    except RoboCacheError as error:
        return Outcome(
            recording, error=str(error), dropped=isinstance(error, EpisodesDropped), lasting=_is_lasting(error)
        )


def _is_lasting(error: BaseException) -> bool:
    """Whether an error is one of the recording itself, and not of its files, the disk or the network."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, RemoteError)):
            return False
        cause = cause.__cause__
    return True


def _earlier(recording: PlannedRecording, store: AnyPieces, key: str) -> Outcome | None:
    """Return the outcome of an earlier export, None if there is none."""
    if piece := store.find(key):
        return Outcome(recording, piece, reused=True)
    if failure := store.failure(key):
        return Outcome(recording, error=failure.error, dropped=failure.dropped, reused=True)
    return None


def _record(work: _Work, plan: Plan, outcome: Outcome) -> None:
    """Record an error of the recording itself, which the next export would have too."""
    if outcome.lasting and work.store.keeps_failures:
        key = plan.key(work.recording, _named_by(work.recording, work.checksums))
        work.store.fail(key, PieceFailure(str(work.recording.path), outcome.error, outcome.dropped))
        _note(work.recording, plan, work.store, work.checksums, key)


def _make(work: _Work, plan: Plan, without: Collection[int] = ()) -> tuple[Path, bool]:
    """Make a piece on its own; return what `AnyPieces.commit` does."""
    while True:
        with ExitStack() as stack:
            bag = stack.enter_context(Bag(work.recording.path, msg_path=plan.options.msg_path))
            try:
                draft = _Draft(work, plan, bag, stack, without)
                draft.conversion.run(work.progress)
                return draft.commit()
            except PartsDropped as dropped:  # after some of their rows were written
                without = dropped.parts


def _make_together(work: _Work, plans: Mapping[int, Plan]) -> dict[int, Outcome]:
    """Make pieces in one pass; return their outcomes, none if each of them has to be made on its own."""
    outcomes: dict[int, Outcome] = {}
    drafts: dict[int, _Draft] = {}
    msg_path, *others = {plan.options.msg_path for plan in plans.values()}
    if others:
        return {}
    with ExitStack() as stack:
        bag = stack.enter_context(Bag(work.recording.path, msg_path=msg_path))
        _definitions, notes = bag.definitions, bag.notes
        for number, plan in plans.items():
            try:
                drafts[number] = _Draft(work, plan, bag, stack)
            except StoreError:
                raise
            except RoboCacheError as error:
                outcomes[number] = Outcome(work.recording, error=str(error), lasting=_is_lasting(error))
        errors = run_together(bag, work.recording, [draft.conversion for draft in drafts.values()], work.progress)
        if bag.notes != notes:  # damage: which of it is found depends on the topics and the times that are read
            return {}
        for (number, draft), failure in zip(drafts.items(), errors, strict=True):
            outcomes[number] = _outcome(work.recording, partial(_end, work, plans[number], draft, failure))
    return outcomes


def _end(work: _Work, plan: Plan, draft: _Draft, error: BaseException | None) -> tuple[Path, bool]:
    """Commit a draft that was made with others, after the error of its conversion."""
    if isinstance(error, PartsDropped):
        return _make(work, plan, error.parts)
    if error:
        raise error
    return draft.commit()


class _Draft:
    """A piece while it is made."""

    def __init__(self, work: _Work, plan: Plan, bag: Bag, stack: ExitStack, without: Collection[int] = ()) -> None:
        self._work, self._plan, self._bag = work, plan, bag
        self._folder = stack.enter_context(work.store.draft())
        video, points = plan.options.video_settings, plan.options.points
        self._writer = stack.enter_context(
            closing(PieceWriter(self._folder, plan.layout, plan.encodings, video, points))
        )
        self.conversion = Conversion(
            bag, work.recording, plan.spec, plan.options, self._writer, without=without, device=plan.device
        )

    def commit(self) -> tuple[Path, bool]:
        """Complete the piece after the run of its conversion; RoboCacheError if the recording is refused."""
        converted, refused = self.conversion.result()
        if refused:
            raise refused
        self._writer.finish(self._bag)
        files = self._work.checksums.result()
        recording_file.save(self._folder, converted, files)
        key = self._plan.key(self._work.recording, _named_by(self._work.recording, self._work.checksums))
        made = self._work.store.commit(self._folder, key)
        _note(self._work.recording, self._plan, self._work.store, self._work.checksums, key)
        return made
