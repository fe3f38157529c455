"""The target of an export, a folder or a bucket: readers find a complete dataset in it, or no dataset."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.piece_store import Drafts, PieceStore
from robocache_ros.formats.dataset_folder import (
    INFO,
    LISTING,
    LOCK,
    MOVES,
    dataset_entries,
    finish_moves,
    is_entry,
    list_entries,
    listed_entries,
    locked,
    publish,
    sha256,
    sync_all,
)
from robocache_ros.storage.cache import cache_folder
from robocache_ros.storage.errors import StoreError, file_errors
from robocache_ros.storage.object_store import ObjectStore, name_below
from robocache_ros.storage.paths import AnyPath, is_url

HIDDEN = ".robocache"
OWN_PIECES = ".robocache-pieces"  # of an export to a local folder, in it
BUCKET_PIECES = f"{HIDDEN}/pieces"  # of an export to a bucket, below its target
BUCKET_APPENDS = f"{HIDDEN}/appends"  # the pieces of appends to a bucket that other machines make, in a folder each


@dataclass
class NewDataset:
    """A dataset during an export."""

    folder: Path  # the local folder of its complete files
    scratch: Path  # a folder of the same file system, for files that are not complete
    pieces: PieceStore  # of its recordings, with those of earlier exports that were stopped or failed
    # Where tasks on other machines put files under their names in the dataset; None: they use `folder`
    staging: ObjectStore | None = None
    staged: dict[str, str] = field(default_factory=dict)  # the SHA-256 of these files by name
    notes: list[str] = field(default_factory=list)  # for the user, about files of earlier exports
    completed_elsewhere: bool = False  # another export of the same plan has completed the dataset


def piece_store(out: str | AnyPath, pieces: str | AnyPath | None = None) -> PieceStore:
    """Return the pieces of an export: those in `pieces`, which it shares with others, or its own ones in `out`."""
    if pieces is None:
        return PieceStore(ObjectStore(f"{out}/{BUCKET_PIECES}")) if is_url(out) else PieceStore(Path(out) / OWN_PIECES)
    if is_url(pieces):
        if is_url(out) and f"{str(pieces).rstrip('/')}/".startswith(f"{str(out).rstrip('/')}/"):
            raise RoboCacheError(f"pieces: {printable(pieces)} is in the folder of the dataset; give another folder")
        return PieceStore(ObjectStore(str(pieces)), shared=True)
    pieces = Path(os.path.abspath(pieces))
    if pieces.exists() and not pieces.is_dir():
        raise RoboCacheError(f"pieces: {printable(pieces)} is a file; give a folder")
    if not is_url(out) and pieces.resolve().is_relative_to(Path(out).resolve()):
        raise RoboCacheError(f"pieces: {printable(pieces)} is in the folder of the dataset; give another folder")
    return PieceStore(pieces, shared=True)


# The target folder of an export: readers find a complete dataset in it, or no dataset.
#
# During an export, the target folder contains a lock file, the piece of each recording, and a partial folder, in which
# the dataset is written:
#
#     <out>/.robocache-lock                    locked with flock by the active export
#     <out>/.robocache-pieces/<key>            the piece of a recording; kept until the dataset is complete. With a
#                                              shared folder of pieces, they are there
#     <out>/.robocache-partial-<id>/dataset    the new dataset
#                                  /scratch    its files that are not complete
#                                  /replaced   the entries of the old dataset, after they are moved
#                                  /moves.json the list of moves, written when the new dataset is complete
#
# All files are on the file system of `out`, which may be a mount point or a link. At the end, the entries are moved to
# `out`, the one by which readers recognize a dataset last. `.robocache-dataset` lists them, unless they are LeRobot's.


PARTIAL = ".robocache-partial-"
APPEND = ".robocache-append-"  # the folder of an append that is not complete
_FOREIGN = ("lost+found",)  # present in a new ext file system


@contextmanager
def new_dataset(
    out: Path, last: str = "meta", *, overwrite: bool = False, pieces: str | AnyPath | None = None
) -> Iterator[NewDataset]:
    """Yield a folder for a new dataset. On exit its contents move to `out`; on an exception it is removed.

    A dataset that is replaced stays readable until the new one is complete. A killed process leaves its partial folder
    in `out`. The next export to `out` removes this folder, or completes the moves if they had started. Complete pieces
    stay after an exception. When a dataset is complete, all pieces in `out` are removed, also those of others.

    Args:
        out: the dataset's folder: new, empty, or with `overwrite` an existing dataset.
        last: the file or folder by which readers recognize the dataset; it is moved to `out` after the others.
        overwrite: replace the dataset in `out`; other files in `out` stay.
        pieces: a folder of pieces that stay, for other exports; None: in `out`.

    Errors:
        RoboCacheError: `out` is in use or not empty, is not a dataset to overwrite, or cannot be written; or `pieces`
            cannot be written.
    """
    out = Path(os.path.abspath(out))
    store: PieceStore = piece_store(out, pieces)
    with file_errors(out):
        made = _make(out, overwrite)
        try:
            with locked(out) as exclusive:
                notes = _clear(out, exclusive)
                _check(out, overwrite)
                partial = out / f"{PARTIAL}{secrets.token_hex(4)}"
                (partial / "dataset").mkdir(parents=True)
                if not exclusive and not store.shared:
                    # Without locks another export may be active: do not use its pieces, do not keep new ones.
                    store = PieceStore(partial / "pieces")
                store.tidy()
                new = NewDataset(partial / "dataset", partial / "scratch", store, notes=notes)
                try:
                    if store.shared:
                        store.check()
                    yield new
                    list_entries(new.folder)
                    sync_all(new.folder)
                    _check(out, overwrite)  # check again: files may have been added during the export
                    publish(out, partial, last)
                    if exclusive:
                        shutil.rmtree(out / OWN_PIECES, ignore_errors=True)
                finally:
                    store.tidy()
                    shutil.rmtree(partial, ignore_errors=True)
                if partial.exists():
                    notes.append(f"{partial.name} in {out}: cannot be removed; remove it by hand")
        finally:
            if made:
                with suppress(OSError):
                    out.rmdir()  # the export produced no files


def _make(out: Path, overwrite: bool) -> bool:
    """Create the folder if it is missing. Refuse an unsuitable folder before anything is written."""
    if out.exists():
        check_target(out, overwrite=overwrite)
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    out.mkdir()
    return True


def check_target(out: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that an export would refuse, without writing to it."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RoboCacheError(f"{printable(out)}: is a file; give a new folder")
    if not any(out.glob(f"{PARTIAL}*")):  # partial folders are handled first: they may contain a complete dataset
        _check(out, overwrite)


def _check(out: Path, overwrite: bool) -> None:
    own = (LOCK, PARTIAL, APPEND, OWN_PIECES, LISTING)
    present = [f.name for f in out.iterdir() if not f.name.startswith(own) and f.name not in _FOREIGN]
    if not present:
        return
    where = printable(out)
    if not overwrite:
        raise RoboCacheError(f"{where}: exists; choose another folder, or replace it with --overwrite")
    entries = listed_entries(out)
    if not entries:
        raise RoboCacheError(f"{where}: not a dataset (no {INFO}), so it is not overwritten; choose another folder")
    for name in entries:
        if os.path.ismount(out / name):
            raise RoboCacheError(
                f"{where}: {name} in it is a mount point and cannot be replaced; choose another folder"
            )


def _clear(out: Path, exclusive: bool) -> list[str]:
    """Remove the partial folders of killed exports, or complete their moves; return notes on what was done."""
    notes = []
    for partial in sorted(out.glob(f"{PARTIAL}*")):
        if not exclusive:  # its export may still be running
            notes.append(f"{partial.name} in {out}: left by another export or in use by one; remove it if none runs")
            continue
        if (partial / MOVES).exists():
            finish_moves(out, partial)
            shutil.rmtree(out / OWN_PIECES, ignore_errors=True)
            notes.append(f"{partial.name}: an export was stopped while it moved its files; they were moved")
        else:
            notes.append(f"{partial.name}: left by an export that was stopped; it was removed")
        shutil.rmtree(partial)
    return notes


# The target of an export in a bucket: readers find a complete dataset in it, or no dataset.
#
# <out>/.robocache/plans/<n>.json      the plan of an export, put if absent; that with the highest number counts
#                       /<n>.files     put if absent before the first file of the dataset: its files with their SHA-256
#                       /<n>.stopped   the export has ended without a dataset; another plan may follow
#                 /pieces/             the pieces, unless they are elsewhere; see `piece_store`
#                 /files/<token>/      files that tasks on other machines have written, under their names in the dataset
#                 /complete.json       the plan of the dataset that is there; the others are removed with it
#
# A plan is named by a hash of what the dataset consists of. Exports of the same plan work together. Nothing is locked,
# so a killed export leaves its plan; the same command continues it. A number is put once, so that of two exports that
# follow a stopped one, one is refused.
#
# The files of the dataset are put one by one, and those by which readers recognize a dataset last. Where a dataset
# is replaced, the new files are put into `files` first. Then the files by which readers recognize the old dataset are
# deleted, the new files are copied to their names, and the other old files are deleted: readers find no dataset for as
# long as the bucket takes to copy.


PLANS, COMPLETE = "plans/", "complete.json"
_PLAN = re.compile(r"([0-9]{6,12})\.json")
_TOKEN = re.compile(r"[0-9a-f]{16}")  # of `secrets.token_hex`; it is the name of a folder
_TRIES = 8
_GIVE_UP = "run robocache fleet gc --give-up on it"
# In a folder by which readers recognize a dataset: the files that they open first.
_RECOGNIZED = (INFO.name, "dataset_info.json", ".zgroup", "zarr.json", "00000000000000000000.json")


@dataclass(frozen=True)
class TargetPlan:
    """The plan of an export to a bucket."""

    digest: str  # of what the dataset consists of
    token: str  # of this export; exports that join it share it
    pieces: int  # number of pieces that it needs
    started: str  # time, ISO 8601 in UTC
    # Names directly in the target, of the files of an earlier dataset or of a stopped export
    replaces: tuple[str, ...] = ()
    number: int = 0  # of the plan, from 1
    stopped: bool = False  # whether its export has ended without a dataset


class BucketTarget:
    """The dataset in a target, and the plans of its exports."""

    def __init__(self, url: str) -> None:
        self.store, self._where = ObjectStore(url), printable(url, 60)
        self._hidden = self.store.below(HIDDEN)
        self._files: frozenset[str] = frozenset()  # of the dataset, while this export replaces another one by it

    def current(self) -> TargetPlan | None:
        """Return the plan that counts, None if there is none."""
        names = self._hidden.listed(PLANS)
        number = max((int(found[1]) for found in map(_PLAN.fullmatch, names) if found), default=0)
        name = f"{PLANS}{number:06d}.json"
        try:
            found = self._read(name) if number else None
        except FileNotFoundError:  # completed in between
            return None
        if found is None:
            return None
        try:
            plan = _plan(found)
        except ValueError as error:
            raise self._foreign(name) from error
        return replace(plan, number=number, stopped=f"{number:06d}.stopped" in names)

    def completed(self) -> dict[str, Any]:
        """Return the record of the complete dataset, empty if there is none."""
        with suppress(FileNotFoundError):
            found = self._read(COMPLETE)
            if not isinstance(found.get("entries", []), list):
                raise self._foreign(COMPLETE)
            return found
        return {}

    def is_done(self, plan: TargetPlan) -> bool:
        """Whether an export of a plan has completed the dataset."""
        with suppress(RoboCacheError):
            return self.completed().get("token") == plan.token
        return False

    def is_complete(self, plan: TargetPlan) -> bool:
        """Whether another export of this plan has completed the dataset, and this one has not deleted files of it."""
        if not self.is_done(plan):
            return False
        there = self.store.listed() if self._files else {}
        return all(name in there for name in self._files)

    def check(self, *, overwrite: bool) -> None:
        """Refuse what `begin` would refuse, except other exports, without writing to the target."""
        self._replaced(self.current(), overwrite=overwrite)

    def begin(self, digest: str, pieces: int, *, overwrite: bool) -> tuple[TargetPlan, bool]:
        """Add a plan of a dataset with this digest, or join the same one; return it, and whether it was added.

        Errors:
            RoboCacheError: another plan counts, or the target has something that is not replaced.
        """
        for _ in range(_TRIES):
            current = self.current()
            if current and self.is_done(current):
                self.clear()  # an export was killed when its dataset was complete
                current = None
            replaces = tuple(sorted(self._replaced(current, overwrite=overwrite)))
            if current and not current.stopped:
                if current.digest != digest:
                    since = printable(current.started[:16], 16)  # to the minute
                    raise RoboCacheError(
                        f"{printable(self.store.url, 48)}: an export of other recordings or options began {since} UTC; "
                        f"wait for it, or if it was killed, {_GIVE_UP}"
                    )
                return current, False
            number = current.number + 1 if current else 1
            started = datetime.now(timezone.utc).isoformat(timespec="seconds")
            plan = TargetPlan(digest, secrets.token_hex(8), pieces, started, replaces, number)
            if self._hidden.create(f"{PLANS}{number:06d}.json", _json(asdict(plan))):
                return plan, True
        raise RoboCacheError(f"{self._where}: many exports are started to it; start one")

    def stop(self, plan: TargetPlan) -> None:
        """Note that the export of a plan has ended, or is given up."""
        self._hidden.put(f"{PLANS}{plan.number:06d}.stopped", b"1")

    def staging(self, plan: TargetPlan) -> ObjectStore:
        """Return the objects of files that are not in the target yet, which `clear` removes."""
        return self._hidden.below(f"files/{plan.token}")

    def publish(
        self, plan: TargetPlan, folder: Path, entries: Sequence[str], staged: Mapping[str, str] | None = None
    ) -> None:
        """Put a complete dataset into the target: files of a local folder, and those in the staging folder of the plan.

        Readers recognize the datasets of the export by `entries`; `staged` has the SHA-256 of the other files.

        Errors:
            RoboCacheError: another export has other results, or has taken the place of this one.
        """
        staging, staged = self.staging(plan), staged or {}
        local = {name_below(folder, file): sha256(file) for file in folder.rglob("*") if file.is_file()}
        files = {**staged, **local}
        self.record_files(plan, files)
        there = staging.listed() if staged else {}
        size = sum((folder / name).stat().st_size for name in local)
        size += sum(each.size for name, each in there.items() if name in staged)
        old = [
            name for top in plan.replaces for name in (top, *(f"{top}/{n}" for n in self.store.listed(f"{top}/") if n))
        ]
        if old:
            staging.put_files(folder, local)
            self._check_current(plan)
            self._files = frozenset(files)
            recognized = [*map(str, self.completed().get("entries", ())), INFO.as_posix(), *entries]
            for group in reversed(_ordered(old, recognized)[1:]):
                self.store.delete(group)
        here = () if old else local
        first, *last = _ordered(files, entries)
        self._put(plan, first, folder, here)
        self.store.delete(name for name in old if name not in files)
        self._check_current(plan, or_done=bool(old))
        for group in last:
            self._put(plan, group, folder, here)
        self._hidden.put(
            COMPLETE, _json({**asdict(plan), "entries": list(entries), "files": len(files), "bytes": size})
        )

    def record_files(self, plan: TargetPlan, files: Mapping[str, str]) -> None:
        """Record the files of the dataset, by name with their SHA-256, before the first one is put.

        Errors:
            RoboCacheError: another export of the plan has other files, or another plan counts.
        """
        self._check_current(plan)
        if not self._hidden.create(f"{PLANS}{plan.number:06d}.files", _json(dict(sorted(files.items())))):
            raise RoboCacheError(
                f"{self._where}: another export of this plan has other results: recordings have changed or failed "
                f"meanwhile; if none runs, {_GIVE_UP}"
            )

    def clear(self) -> None:
        """Remove the plans and the pieces, the plans last. Whoever is killed here leaves them to the next export."""
        names = [name for name in self._hidden.listed() if name != COMPLETE]
        self._hidden.delete(name for name in names if not name.startswith(PLANS))
        self._hidden.delete(name for name in names if name.startswith(PLANS))

    def _put(self, plan: TargetPlan, names: Sequence[str], folder: Path, here: Container[str]) -> None:
        """Put files of the folder, and copy the others, which are in the bucket."""
        copied = [name for name in names if name not in here]
        self.store.put_files(folder, (name for name in names if name in here))
        try:
            self.store.copy_files(copied, self.staging(plan))
        except FileNotFoundError:  # another export of the plan has completed the dataset, and removed them
            if not all((folder / name).is_file() for name in copied):
                raise
            self.store.put_files(folder, copied)

    def _check_current(self, plan: TargetPlan, *, or_done: bool = False) -> None:
        """Refuse to go on if another plan counts by now; `or_done`: unless an export of this one is complete."""
        current = self.current()
        if current is None and or_done and self.is_done(plan):
            return
        if current is None or current.token != plan.token:
            raise RoboCacheError(
                f"{self._where}: another export has taken the place of this one; choose another folder"
            )

    def _replaced(self, current: TargetPlan | None, *, overwrite: bool) -> set[str]:
        """Return the names of a dataset that is replaced, and of the files of a stopped export; refuse others."""
        own: set[str] = set()
        if current and (files := self._files_of(current)):  # it has begun to put them
            own = {name.partition("/")[0] for name in files} | set(current.replaces)
        present = {name for name in self.store.entries() if not name.startswith(HIDDEN)} - own
        if not present:
            return own
        if not overwrite:
            raise RoboCacheError(f"{self._where}: exists; choose another folder, or replace it with --overwrite")
        listed: bytes | None = None
        with suppress(FileNotFoundError):
            listed = self.store.get(LISTING)
        known = set(dataset_entries(listed, is_lerobot=INFO.name in self.store.listed(f"{INFO.parent}/")))
        if not known:
            raise RoboCacheError(
                f"{self._where}: not a dataset (no {INFO}), so it is not overwritten; choose another folder"
            )
        return own | known & (present | {LISTING})

    def _files_of(self, plan: TargetPlan) -> dict[str, Any]:
        """Return the files that exports of a plan put into the target; empty if none has begun to."""
        name = f"{PLANS}{plan.number:06d}.files"
        with suppress(FileNotFoundError):
            files = self._read(name)
            if not all(is_entry(file.partition("/")[0]) for file in files):
                raise self._foreign(name)
            return files
        return {}

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self._hidden.get(name))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._foreign(name)
        return found

    def _foreign(self, name: str) -> RoboCacheError:
        where = printable(f"{self.store.url}/{HIDDEN}/{name}", 110)
        return RoboCacheError(f"{where}: not a record of an export; check what wrote it, and delete it")


def _plan(found: Mapping[str, Any]) -> TargetPlan:
    """Return a plan from its record; ValueError if it is not one."""
    digest, token, started, pieces, replaces = (
        found.get(name) for name in ("digest", "token", "started", "pieces", "replaces")
    )
    if not (isinstance(digest, str) and isinstance(token, str) and isinstance(started, str)):
        raise ValueError("no texts")
    if not isinstance(pieces, int) or not isinstance(replaces, list):
        raise ValueError("no number of pieces, or no list of what it replaces")
    if not _TOKEN.fullmatch(token) or not all(isinstance(name, str) and is_entry(name) for name in replaces):
        raise ValueError("names of other places")  # files below these are deleted
    return TargetPlan(digest, token, pieces, started, tuple(replaces))


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _ordered(names: Iterable[str], entries: Sequence[str]) -> list[list[str]]:
    """Return the names of files in groups, in the order in which they are put: the entries after the others.

    In a folder that is an entry, the file by which readers recognize it is the last.
    """
    groups: list[list[str]] = [[], [], []]
    below = tuple(f"{entry}/" for entry in entries)
    for name in sorted(names):
        inside = name.startswith(below)
        is_last = name in entries or (inside and name.rpartition("/")[2] in _RECOGNIZED)
        groups[2 if is_last else 1 if inside else 0].append(name)
    return [*groups[:2], *([name] for name in sorted(groups[2], key=lambda name: (-name.count("/"), name)))]


@contextmanager
def new_bucket_dataset(
    url: str,
    digest: str,
    count: int,
    entries: Sequence[str],
    *,
    overwrite: bool = False,
    pieces: str | AnyPath | None = None,
) -> Iterator[NewDataset]:
    """Yield a local folder for a new dataset. On exit its files are put into the target, the entries last.

    Pieces stay after an exception, and are removed when the dataset is complete, unless they are shared. If another
    export of the same plan completes the dataset first, an error of this one, whose pieces are gone, is not raised.

    Args:
        url: of the target.
        digest: of what the dataset consists of.
        count: number of pieces of the dataset.
        entries: files and folders by which readers recognize the datasets of the export.
        overwrite: replace a dataset in the target; other objects there stay.
        pieces: a folder or a URL of pieces that stay, for other exports; None: in the target.

    Errors:
        StoreError: a bucket cannot be used. `ObjectStore.check` finds that out earlier.
        RoboCacheError: another export is writing to the target, it is not empty, or is not a dataset to overwrite.
    """
    target, store = BucketTarget(url), piece_store(url, pieces)
    plan, is_ours = target.begin(digest, count, overwrite=overwrite)
    with Drafts(cache_folder("drafts")).new() as draft:
        folder = draft / "dataset"
        folder.mkdir()
        new = NewDataset(folder, draft / "scratch", store, target.staging(plan))
        try:
            store.tidy()
            yield new
            list_entries(folder, new.staged)
            target.publish(plan, folder, entries, new.staged)
        except BaseException as error:
            if not isinstance(error, (RoboCacheError, OSError)) or not target.is_complete(plan):
                if is_ours:
                    with suppress(StoreError):
                        target.stop(plan)
                raise
            new.completed_elsewhere = True
            new.notes.append("another export of the same recordings and options has completed the dataset")
    try:
        target.clear()
    except StoreError as error:
        new.notes.append(f"{error}: pieces are left; run robocache fleet gc {shlex.quote(url)}")
