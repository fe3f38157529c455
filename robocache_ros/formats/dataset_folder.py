"""The folder of a dataset: its entries, its checksums, and how it is moved to its final location.

The moves are in an order that is safe for readers and for a killed process. SHA256SUMS has the format of `sha256sum`,
which also checks it: `sha256sum --check SHA256SUMS`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import given_file, open_file, read_bytes

LOCK = ".robocache-lock"  # in a target, locked with flock by the exports that write to it
LISTING = ".robocache-dataset"  # lists the entries of a dataset, which --overwrite replaces
MOVES = "moves.json"
_NO_LOCKS = (ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL)  # errors of file systems without locks
SYNC_THREADS = 8  # a flush waits for the disk, which flushes several files at once in little more time than one
INFO = Path("meta") / "info.json"  # identifies a LeRobot dataset of another program
_LEROBOT = ("meta", "data", "videos", "arrays", "report.html", "report.json", "SHA256SUMS")


class TargetInUse(RoboCacheError):  # noqa: N818 - the name says what it adds
    """Another export writes to the target."""


@contextmanager
def locked(out: Path, *, shared: bool = False, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock of a target; yield false if its file system does not support locks.

    Others may hold a `shared` one at the same time.

    Errors:
        TargetInUse: others hold it.
    """
    path, until, has_locks = out / LOCK, time.monotonic() + wait_s, True
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() >= until:
                advice = "wait for it, then run this again" if shared else "wait for it, or choose another folder"
                raise TargetInUse(f"{printable(out)}: another export is writing to it; {advice}") from None
            time.sleep(0.01)
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            has_locks = False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)  # the previous export removed this file between open and lock
    try:
        yield has_locks
    finally:
        with suppress(OSError):
            if shared:  # the last one removes the file
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        os.close(handle)


def list_entries(dataset: Path, others: Iterable[str] = ()) -> None:
    """List the entries of a complete dataset, and `others` that are elsewhere, if they are not those of LeRobot."""
    names = sorted({entry.name for entry in dataset.iterdir()} | {name.partition("/")[0] for name in others})
    if not set(names) <= set(_LEROBOT):
        (dataset / LISTING).write_text(json.dumps(names), encoding="utf-8")


def listed_entries(out: Path) -> tuple[str, ...]:
    """Return the names of a dataset's files and folders in `out`; empty if `out` has no dataset."""
    listing: str | None = None
    with suppress(OSError, ValueError):
        listing = (out / LISTING).read_text(encoding="utf-8")
    return dataset_entries(listing, is_lerobot=(out / INFO).exists())


def dataset_entries(listing: str | bytes | None, *, is_lerobot: bool) -> tuple[str, ...]:
    """Return the names of a dataset's files and folders, given the text of its list, or whether it is LeRobot's."""
    try:
        return (LISTING, *(name for name in json.loads(listing or "") if is_entry(name)))
    except (ValueError, TypeError, RecursionError):
        return _LEROBOT if is_lerobot else ()


def publish(out: Path, partial: Path, last: str) -> None:
    """Move a complete dataset to `out`, the entry `last` after the others. Undo the moves if one fails."""
    moves = partial / MOVES
    draft = partial / f"{MOVES}.new"
    written = {entry.name for entry in (partial / "dataset").iterdir()}
    new = sorted(written, key=lambda name: (name == last, name))
    # The entry by which readers recognize the old dataset is listed last, and is moved out first.
    present = [name for name in dict.fromkeys((*listed_entries(out), *new)) if os.path.lexists(out / name)]
    old = sorted(present, key=lambda name: name != last)
    draft.write_text(json.dumps({"old": old, "new": new}), encoding="utf-8")
    sync(draft)
    draft.rename(moves)  # from here on, the next export completes a killed one
    sync(partial)
    try:
        finish_moves(out, partial)
    except BaseException:
        _move_back(out, partial)
        raise
    sync(out)


def finish_moves(out: Path, partial: Path) -> None:
    """Move old entries out, then new entries in, in the listed order. Can be repeated after an interruption."""
    moves = json.loads((partial / MOVES).read_text(encoding="utf-8"))
    dataset, replaced = partial / "dataset", partial / "replaced"
    replaced.mkdir(exist_ok=True)
    for name in moves["old"]:
        if is_entry(name) and os.path.lexists(out / name) and not os.path.lexists(replaced / name):
            (out / name).rename(replaced / name)
    for name in moves["new"]:
        if is_entry(name) and (dataset / name).exists():
            (dataset / name).rename(out / name)


def is_entry(name: object) -> bool:
    """Whether a name read from a file refers to an entry directly in the folder."""
    if not isinstance(name, str) or not name or Path(name).name != name:
        return False
    return name == LISTING or not name.startswith(".")


def _move_back(out: Path, partial: Path) -> None:
    moves = json.loads((partial / MOVES).read_text(encoding="utf-8"))
    dataset, replaced = partial / "dataset", partial / "replaced"
    waiting = {name for name in moves["old"] if not os.path.lexists(replaced / name)}
    for name in reversed(moves["new"]):
        if not (dataset / name).exists() and name not in waiting:
            (out / name).rename(dataset / name)
    for name in reversed(moves["old"]):
        if os.path.lexists(replaced / name):
            (replaced / name).rename(out / name)
    (partial / MOVES).unlink()


def sync_all(root: Path) -> None:
    """Flush all contents of a folder to disk, so that they survive a power failure."""
    sync_files(Path(folder) / name for folder, _, files in os.walk(root) for name in (*files, "."))


def sync_files(paths: Iterable[Path]) -> None:
    """Flush files, or the entries of folders, to disk."""
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        for _ in pool.map(sync, paths):
            pass


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


CHECKSUMS = "SHA256SUMS"
THREADS = 2
_BLOCK_BYTES = 128 << 10  # stays in the cache of a core


def files_of(dataset: Path) -> list[str]:
    """Return the names of all files of a dataset, relative to it, in the order of SHA256SUMS and without it."""
    files = sorted(file.relative_to(dataset).as_posix() for file in dataset.rglob("*") if file.is_file())
    return [name for name in files if name != CHECKSUMS]


def write_checksums(dataset: Path, digests: Mapping[str, str]) -> None:
    """Write SHA256SUMS of files of a dataset, given their SHA-256 by their names relative to it, into it."""
    lines = [f"{digests[name]}  {name}\n" for name in sorted(digests)]
    (dataset / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def update_checksum(dataset: Path, name: str) -> None:
    """Replace the checksum of a file of a dataset that has SHA256SUMS and is changed on purpose."""
    path = dataset / CHECKSUMS
    if path.is_file():
        lines = [line for line in read_bytes(given_file(path)).decode().splitlines() if line[66:] != name]
        lines.append(f"{digests_of(dataset, [name])[name]}  {name}")
        path.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line[66:])), encoding="utf-8")


def digests_of(dataset: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of files of a dataset, in hexadecimal digits. Hard links of one file are read once."""
    identities = [(dataset / name).stat() for name in names]
    distinct = {(found.st_dev, found.st_ino): name for name, found in zip(names, identities, strict=True)}
    with ThreadPoolExecutor(THREADS) as pool:
        digests = dict(zip(distinct, pool.map(sha256, [dataset / name for name in distinct.values()]), strict=True))
    return {name: digests[found.st_dev, found.st_ino] for name, found in zip(names, identities, strict=True)}


def sha256(path: AnyPath) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest, block = hashlib.sha256(), memoryview(bytearray(_BLOCK_BYTES))
    with open_file(given_file(path)) as file:
        while size := file.readinto(block):  # type: ignore[attr-defined] # of every binary file
            digest.update(block[:size])
    return digest.hexdigest()
