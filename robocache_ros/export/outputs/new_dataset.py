"""What an export writes to: the folder of the new dataset, and the pieces of its recordings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.bucket.bucket_pieces import BucketPieces
from robocache_ros.export.bucket.target_plans import HIDDEN
from robocache_ros.export.pieces.any_pieces import AnyPieces
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.object_store import ObjectStore

OWN_PIECES = ".robocache-pieces"  # of an export to a local folder, in it
BUCKET_PIECES = f"{HIDDEN}/pieces"  # of an export to a bucket, below its target
BUCKET_APPENDS = f"{HIDDEN}/appends"  # the pieces of appends to a bucket that other machines make, in a folder each


@dataclass
class NewDataset:
    """A dataset during an export.

    Attributes:
        folder: the local folder of its complete files.
        scratch: a folder of the same file system, for files that are not complete.
        pieces: of its recordings, with those of earlier exports that were stopped or failed.
        staging: where tasks on other machines put files under their names in the dataset; None: they use `folder`.
        staged: the SHA-256 of these files by name.
        notes: for the user, about files of earlier exports.
        by_another: another export of the same plan has completed the dataset.
    """

    folder: Path
    scratch: Path
    pieces: AnyPieces
    staging: ObjectStore | None = None
    staged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    by_another: bool = False

    def staged_below(self, folder: str) -> list[str]:
        """Return the names of staged files in a folder of the dataset, relative to it."""
        return [name[len(folder) + 1 :] for name in self.staged if name.startswith(f"{folder}/")]


def piece_store(out: str | Path, pieces: str | Path | None = None) -> AnyPieces:
    """Return the pieces of an export: those in `pieces`, which it shares with others, or its own ones in `out`.

    Args:
        out: the target, a folder or a URL.
        pieces: a folder or a URL.

    Errors:
        RoboCacheError: `pieces` is not a folder, or is in `out`.
    """
    if pieces is None:
        return (
            BucketPieces(ObjectStore(f"{out}/{BUCKET_PIECES}")) if is_url(out) else PieceStore(Path(out) / OWN_PIECES)
        )
    if is_url(pieces):
        if is_url(out) and f"{str(pieces).rstrip('/')}/".startswith(f"{str(out).rstrip('/')}/"):
            raise RoboCacheError(f"pieces: {printable(pieces)} is in the folder of the dataset; give another folder")
        return BucketPieces(ObjectStore(str(pieces)), shared=True)
    pieces = Path(os.path.abspath(pieces))
    if pieces.exists() and not pieces.is_dir():
        raise RoboCacheError(f"pieces: {printable(pieces)} is a file; give a folder")
    if not is_url(out) and pieces.resolve().is_relative_to(Path(out).resolve()):
        raise RoboCacheError(f"pieces: {printable(pieces)} is in the folder of the dataset; give another folder")
    return PieceStore(pieces, shared=True)
