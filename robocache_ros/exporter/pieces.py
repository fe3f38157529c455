"""Makes the pieces of an export: a task for each recording, and a key for all that determines the bytes of a piece."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.cuda import OutOfMemoryError

from robocache_ros.bags.reader import Bag, definitions_in, storage_files
from robocache_ros.bags.storage.metadata import is_stored
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.boundaries import EpisodesDropped, episode_file, episode_text
from robocache_ros.exporter.convert import Conversion, PartsDropped, run_together
from robocache_ros.exporter.episodes import Labels
from robocache_ros.exporter.executors import Executor, Resources, Task
from robocache_ros.exporter.piece_store import PIECE, PieceFailure, PieceStore
from robocache_ros.exporter.piece_writer import Encodings, PieceWriter
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Converted, Failed, Progress, Started
from robocache_ros.formats import recording as recording_file
from robocache_ros.formats.video import VideoSettings
from robocache_ros.spec import FusionSpec, Layout
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.downloads import hold, opened, stored
from robocache_ros.storage.errors import RemoteError, StoreError, file_errors
from robocache_ros.storage.object_store import refresh
from robocache_ros.storage.paths import AnyPath, RemotePath, is_url

_BLOCK_BYTES = 1 << 20

Identity = tuple[int, int, int, int]  # device, inode, size, time of the last change of the contents in ns


class Checksums:
    """Computes the SHA-256 of a recording's files on a separate thread. A context manager: exit stops the thread.

    The constructor notes the sizes and times of the files, before any read. Files at URLs are downloaded meanwhile, and
    kept until exit: other readers read what has arrived.
    """

    def __init__(self, recording: AnyPath) -> None:
        self.unread = unread_files(recording)  # identifies the files without reading them
        self._before = {file: regular_file_identity(file) for file in storage_files(recording)}
        self._held = ExitStack()
        self._held.enter_context(hold(self._before))
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, "checksums")
        self._digests = {file: self._pool.submit(self._sha256, file) for file in self._before}

    def result(self) -> list[dict[str, Any]]:
        """Wait for the checksums; return the name, size and SHA-256 of every file.

        Errors:
            RoboCacheError: a file changed since construction, so its checksum may not match the data that was read.
        """
        try:
            digests = {file: digest.result() for file, digest in self._digests.items()}
            after = {file: regular_file_identity(file) for file in self._before}
        except FileNotFoundError as error:
            gone = printable(error.filename)
            raise RoboCacheError(f"{gone}: vanished while it was read; export it once it is back") from None
        for file, before in self._before.items():
            if after[file] != before:
                raise RoboCacheError(f"{printable(file)}: changed while it was read; export it once it is complete")
        return [
            {"name": printable(file.name, 255), "size": before[2], "sha256": digests[file]}
            for file, before in self._before.items()
        ]

    def __enter__(self) -> Checksums:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._held.close()
        self._pool.shutdown(cancel_futures=True)

    def _sha256(self, file: AnyPath) -> str:
        digest = hashlib.sha256()
        block = memoryview(bytearray(_BLOCK_BYTES))  # reused: new memory costs half as much as the hash, in page faults
        local = stored(file) if isinstance(file, RemotePath) else opened(file)
        try:
            for at in range(0, local.size, _BLOCK_BYTES):
                if self._stopped.is_set():
                    raise CancelledError
                local.ready(at, at + _BLOCK_BYTES)
                digest.update(block[: os.preadv(local.handle, [block], at)])
        finally:
            local.close()
        if isinstance(file, RemotePath):
            file.require_unchanged()
        return digest.hexdigest()


def regular_file_identity(file: AnyPath) -> Identity:
    """Return an identity that changes with the file; RoboCacheError for a pipe or device: a read may never end."""
    found: Any = file.stat() if isinstance(file, RemotePath) else os.stat(file)
    if not stat.S_ISREG(found.st_mode):
        raise RoboCacheError(f"{printable(file)}: not a regular file; give a rosbag2 folder or its .mcap or .db3 file")
    if isinstance(file, RemotePath):
        return 0, 0, found.st_size, found.st_mtime_ns
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def unread_files(recording: AnyPath) -> list[dict[str, Any]]:
    """Return the path, size and times of every file of a recording, or its URL and version: they change with it.

    They stand for its checksums where reading it again would take long. The times are those of its file system, so
    that all machines that mount it see the same ones.
    """
    files = storage_files(recording)
    if remote := [file for file in files if isinstance(file, RemotePath)]:
        for file in remote:
            refresh(file)
        return [{"path": str(file), "version": file.version} for file in remote]
    found = [(os.path.realpath(file), os.stat(file)) for file in files]
    return [{"path": p, "size": s.st_size, "mtime_ns": s.st_mtime_ns, "ctime_ns": s.st_ctime_ns} for p, s in found]


# Options that do not affect pieces, or only through `Plan.encodings`.
_OF_THE_DATASET = ("task", "robot_type", "formats", "media", "depth", "voxels", "msg_path")
# Libraries that compute or encode the contents of a piece.
LIBRARIES = ("numpy", "torch", "pyarrow", "av", "pillow")
# Raise it with a change of the code that changes the bytes of pieces: pieces of another version are not reused. A test
# compares the bytes with those of this version.
PIECE_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """The inputs of an export."""

    # In the given order, which is that of the episodes; a recording may occur several times. Paths are complete
    # recordings
    recordings: tuple[PlannedRecording, ...]
    spec: FusionSpec  # the resolved spec, with the changes from the options
    options: DatasetOptions
    encodings: Encodings  # of each image stream, sorted; the pieces contain images in these encodings
    # Converts images and clouds: `cpu` or `cuda:<index>`. Its results are the same, except with `jpeg: gpu`
    device: str = "cpu"

    @property
    def distinct(self) -> tuple[PlannedRecording, ...]:
        """The recordings, and parts of them, that become a piece; each once."""
        return tuple(dict.fromkeys(recording.frames_of for recording in self.recordings))

    @cached_property
    def layout(self) -> Layout:
        """The columns of the pieces: those of the spec, with the actions that the options ask for."""
        return Layout(Labels(self.spec, self.options).spec)

    @cached_property
    def jpeg_decoder(self) -> str:
        """The decoder of jpeg images with `jpeg: gpu`, whose pixels may depend on its version and on the GPU."""
        if self.options.jpeg == "cpu":
            return ""
        versions = f"torchvision {_version('torchvision')}, CUDA {torch.version.cuda}"
        return f"nvJPEG on {torch.cuda.get_device_name(self.device)} ({versions})"

    def key(self, recording: PlannedRecording, files: Sequence[dict[str, Any]]) -> str:
        """Return the name of the piece of a recording: a hash of all inputs that determine its bytes.

        Args:
            recording: notes contain its name, and its metadata.yaml determines how files are read. Its task and its
                outcome do not affect the piece.
            files: name, size and SHA-256 of its storage files.
        """
        metadata = recording.path / "metadata.yaml"
        decides = {
            **self._of_all_recordings,
            "code": fingerprint(),  # of this process
            "recording": recording.path.name,
            "part": [recording.start, recording.stop],
            "files": list(files),
            "episodes": self._episodes_of(recording.path),
            "metadata": hashlib.sha256(metadata.read_bytes()).hexdigest() if metadata.is_file() else "",
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _of_all_recordings(self) -> dict[str, Any]:
        """What determines the bytes of the pieces of all recordings."""
        options = {name: value for name, value in asdict(self.options).items() if name not in _OF_THE_DATASET}
        given = definitions_in(self.options.msg_path, [feed.type for feed in self.spec.feeds])
        return {
            "spec": self.spec.to_dict(),
            "options": options,
            "encodings": self.encodings,
            "nvjpeg": self.jpeg_decoder,
            "definitions": {name: text for name, (text, _) in sorted(given.items())},
        }

    def _episodes_of(self, path: AnyPath) -> str:
        """Return a hash of the file that states the episodes of a recording; empty without one."""
        stated = episode_file(path) if self.options.episode_file and not self.options.episode_topic else None
        return hashlib.sha256(episode_text(stated).encode()).hexdigest() if stated else ""


@cache
def fingerprint() -> dict[str, Any]:
    """Return what identifies the code that makes a piece: its version, and those of the libraries."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"piece": PIECE_VERSION, "python": python} | {name: _version(name) for name in LIBRARIES}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


_KEY = re.compile(r"[0-9a-f]{64}")
_TARGET_ERRORS = (ENOSPC, EDQUOT, EFBIG, EROFS)  # errors that would also affect all other recordings


@dataclass(frozen=True)
class Outcome:
    """The outcome for a recording in a dataset: its piece, or the error."""

    recording: PlannedRecording
    piece: AnyPath | None = None
    reused: bool = False  # an earlier export made the piece, or recorded the error
    replaced: bool = False  # the piece of an earlier export was damaged, and was made again
    error: str = ""
    dropped: bool = False  # the error is the one that `on_invalid: drop` asks for
    permanent: bool = False  # the error is one of the recording itself: the next export would have it too


@dataclass(frozen=True)
class _Recording:
    """A recording, and what making its pieces needs."""

    recording: PlannedRecording
    store: PieceStore
    checksums: Checksums
    progress: Progress | None


def make_pieces_of(
    recording: PlannedRecording,
    plans: Sequence[Plan],
    store: PieceStore,
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
            for number, plan in enumerate(plans) if resumed else ():
                key = plan.key(recording, files_in_key(recording, checksums))
                if piece := store.find(key):
                    outcomes[number] = Outcome(recording, piece, reused=True)
                    _note(recording, plan, store, checksums, key)
                elif failed := _failed(recording, store, plan.key(recording, checksums.unread)):
                    outcomes[number] = failed
            missing = [number for number in range(len(plans)) if number not in outcomes]
            work = _Recording(recording, store, checksums, progress)
            # Kernels of several threads would share the buffers of a GPU.
            if len(missing) > 1 and all(plans[number].device == "cpu" for number in missing):
                outcomes |= _make_together(work, {number: plans[number] for number in missing})
            for number in missing:
                if number not in outcomes:
                    outcomes[number] = _outcome(recording, partial(_make, work, plans[number]))
            for number in missing:
                if outcomes[number].permanent and store.remembers_failures:
                    record_failure(store, plans[number].key(recording, checksums.unread), outcomes[number])
    except StoreError:  # of the bucket of the pieces, or of the credentials: it would affect all other recordings
        raise
    except RoboCacheError as error:  # of the files, which all pieces are made from
        return [outcomes.get(number) or Outcome(recording, error=str(error)) for number in range(len(plans))]
    return [outcomes[number] for number in range(len(plans))]


def _known(recording: PlannedRecording, plans: Sequence[Plan], store: PieceStore) -> list[Outcome]:
    """Return the outcomes of earlier exports that are found without reading the recording, if all are, else nothing."""
    try:
        files = unread_files(recording.path)
        unread = [plan.key(recording, files) for plan in plans]
    except (OSError, RoboCacheError):
        return []
    outcomes: list[Outcome] = []
    for name in unread:
        key = name if is_url(recording.path) else store.noted(f"{name}{PIECE}") or ""
        if _KEY.fullmatch(key) and (piece := store.find(key)):
            outcomes.append(Outcome(recording, piece, reused=True))
        elif failed := _failed(recording, store, name):
            outcomes.append(failed)
        else:
            return []
    return outcomes


def files_in_key(recording: PlannedRecording, checksums: Checksums) -> recording_file.StorageFiles:
    """Return the files in the key of a piece: of a URL with their versions, so that they are not downloaded for it."""
    return checksums.unread if is_url(recording.path) else checksums.result()


def _note(recording: PlannedRecording, plan: Plan, store: PieceStore, checksums: Checksums, key: str) -> None:
    if store.shared and (unread := plan.key(recording, checksums.unread)) != key:
        store.note(unread + PIECE, key)


def _outcome(recording: PlannedRecording, make: Callable[[], tuple[AnyPath, bool]]) -> Outcome:
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
            recording, error=str(error), dropped=isinstance(error, EpisodesDropped), permanent=_is_permanent(error)
        )


def _is_permanent(error: BaseException) -> bool:
    """Whether an error is one of the recording itself, and not of its files, the disk or the network."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, RemoteError)):
            return False
        cause = cause.__cause__
    return True


def _failed(recording: PlannedRecording, store: PieceStore, unread: str) -> Outcome | None:
    """Return the permanent error that an earlier export recorded; None if there is none, or it is tried again."""
    failure = store.failure(unread) if store.remembers_failures else None
    if not failure or not failure.permanent:
        return None
    return Outcome(recording, error=failure.error, dropped=failure.dropped, permanent=True, reused=True)


def record_failure(store: PieceStore, unread: str, outcome: Outcome) -> None:
    """Record the error of a recording, given its key without reading it."""
    path = str(outcome.recording.path)
    store.fail(unread, PieceFailure(path, outcome.error, outcome.dropped, outcome.permanent))


def _make(work: _Recording, plan: Plan, without: Collection[int] = ()) -> tuple[AnyPath, bool]:
    """Make a piece on its own; return what `PieceStore.commit` does."""
    while True:
        with ExitStack() as stack:
            bag = stack.enter_context(Bag(work.recording.path, msg_path=plan.options.msg_path))
            try:
                draft = _Draft(work, plan, bag, stack, without)
                draft.conversion.run(work.progress)
                return draft.commit()
            except PartsDropped as dropped:  # after some of their rows were written
                without = dropped.parts


def _make_together(work: _Recording, plans: Mapping[int, Plan]) -> dict[int, Outcome]:
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
                outcomes[number] = Outcome(work.recording, error=str(error), permanent=_is_permanent(error))
        errors = run_together(bag, work.recording, [draft.conversion for draft in drafts.values()], work.progress)
        if bag.notes != notes:  # damage: which of it is found depends on the topics and the times that are read
            return {}
        for (number, draft), failure in zip(drafts.items(), errors, strict=True):
            outcomes[number] = _outcome(work.recording, partial(_end, work, plans[number], draft, failure))
    return outcomes


def _end(work: _Recording, plan: Plan, draft: _Draft, error: BaseException | None) -> tuple[AnyPath, bool]:
    """Commit a draft that was made with others, after the error of its conversion."""
    if isinstance(error, PartsDropped):
        return _make(work, plan, error.parts)
    if error:
        raise error
    return draft.commit()


class _Draft:
    """A piece while it is made."""

    def __init__(self, work: _Recording, plan: Plan, bag: Bag, stack: ExitStack, without: Collection[int] = ()) -> None:
        self._work, self._plan, self._bag = work, plan, bag
        self._folder = stack.enter_context(work.store.drafts.new())
        options = plan.options
        video, points = VideoSettings(options.crf, options.preset, options.gop), options.points
        self._writer = stack.enter_context(
            closing(PieceWriter(self._folder, plan.layout, plan.encodings, video, points))
        )
        self.conversion = Conversion(
            bag, work.recording, plan.spec, plan.options, self._writer, without=without, device=plan.device
        )

    def commit(self) -> tuple[AnyPath, bool]:
        """Complete the piece after the run of its conversion; RoboCacheError if the recording is refused."""
        converted, refused = self.conversion.result()
        if refused:
            raise refused
        self._writer.finish(self._bag)
        files = self._work.checksums.result()
        recording_file.save_recording(self._folder, converted, files)
        key = self._plan.key(self._work.recording, files_in_key(self._work.recording, self._work.checksums))
        made = self._work.store.commit(self._folder, key)
        _note(self._work.recording, self._plan, self._work.store, self._work.checksums, key)
        return made


# Measured: 0.3 GB without cameras, and 0.15 to 0.3 GB more for each camera of 640x480.
PROCESS_BYTES = 448 << 20
READ_BYTES = 192 << 20  # at most, of messages that are read ahead
MEDIA_BYTES, PIXEL_BYTES = 64 << 20, 512  # of a stream, and of each pixel of its images
IMAGE_SIZE = (720, 1280)  # of a stream whose spec does not state it
STEP_BYTES = 256 << 20


@dataclass(frozen=True)
class RecordingTask(Task):
    """A recording, and the names of the datasets that it is converted for."""

    recording: PlannedRecording
    datasets: tuple[str, ...]


def make_pieces(
    plans: Mapping[str, Plan], store: PieceStore, executor: Executor, progress: Progress | None
) -> dict[str, dict[PlannedRecording, Outcome]]:
    """Make the pieces of plans, all pieces of a recording in one pass; return the outcome of each recording by plan.

    The executor runs a task for each recording.

    Errors:
        OSError: an error of the target, such as a full disk; complete pieces are kept.
        RoboCacheError: of the executor.
    """
    datasets: dict[PlannedRecording, list[str]] = {}
    for name, plan in plans.items():
        for recording in plan.distinct:
            datasets.setdefault(recording, []).append(name)
    tasks = [
        RecordingTask(
            recording.path.name, size, estimated_needs([plans[name] for name in names], size), recording, tuple(names)
        )
        for recording, names in datasets.items()
        for size in (size_of(recording.path),)
    ]
    progress = progress or (lambda _event: None)
    sizes = tuple(task.size for task in tasks)
    progress(Started(tuple(task.recording for task in tasks), sizes, executor.parallel(tasks)))
    shared = {name: replace(plan, recordings=()) for name, plan in plans.items()}  # each process gets this
    made: dict[str, dict[PlannedRecording, Outcome]] = {name: {} for name in plans}
    with closing(executor.map(_MakePieces(shared, store, store.used()), tasks, progress)) as results:
        for task, outcomes in results:
            if isinstance(outcomes, StoreError):  # of the bucket, and not of the recording
                raise outcomes
            if isinstance(outcomes, RoboCacheError):
                outcomes = [Outcome(task.recording, error=str(outcomes)) for _ in task.datasets]
                _tell(task, outcomes, progress)
            for name, outcome in zip(task.datasets, outcomes, strict=True):
                made[name][task.recording] = outcome
    return made


@dataclass(frozen=True)
class _MakePieces:
    """What makes the pieces of a recording, in any process."""

    plans: Mapping[str, Plan]
    store: PieceStore
    resumed: bool  # pieces or errors of an earlier export exist

    def __call__(self, task: RecordingTask, progress: Progress) -> list[Outcome]:
        where = self.store.folder
        if self.store.local and not where.parent.is_dir():
            raise RoboCacheError(f"{printable(where.parent)}: is not on this machine; use a bucket, or a shared folder")
        plans = [self.plans[name] for name in task.datasets]
        made = make_pieces_of(task.recording, plans, self.store, resumed=self.resumed, progress=progress)
        _tell(task, made, progress)
        return made


def _tell(task: RecordingTask, made: Sequence[Outcome], progress: Progress) -> None:
    """Tell which pieces are complete, and which failed."""
    if pieces := [outcome for outcome in made if outcome.piece]:
        progress(Converted(task.recording, all(outcome.reused for outcome in pieces)))
    for name, outcome in zip(task.datasets, made, strict=True):
        if outcome.error:
            progress(Failed(task.recording, outcome.error, name))


def estimated_needs(plans: Sequence[Plan], size: int) -> Resources:
    """Estimate what the conversion of a recording needs, given the datasets that it is converted for and its bytes."""
    memory = PROCESS_BYTES + min(size, READ_BYTES)
    for stream in (stream for plan in plans for stream in plan.spec.media):
        height, width = (stream.image.size if stream.image else None) or IMAGE_SIZE
        memory += MEDIA_BYTES + PIXEL_BYTES * height * width
    memory = -(-memory // STEP_BYTES) * STEP_BYTES  # Ray has a queue for each amount
    return Resources(1.0, float(any(plan.device != "cpu" for plan in plans)), memory)


def size_of(recording: AnyPath) -> int:
    """Return the bytes of the files of a recording."""
    try:
        if is_url(recording) and recording.is_dir():  # without a request for its metadata
            return sum(file.stat().st_size for file in recording.iterdir() if is_stored(file.name))
        return sum(file.stat().st_size for file in storage_files(recording))
    except OSError:
        return 0  # removed meanwhile: the conversion reports the error for this recording only
