"""What the pieces of an export offer, wherever they are: in a local folder, or in a bucket."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class PieceFailure:
    """The error of a recording that cannot be converted, as it is recorded for later exports.

    Attributes:
        recording: its path or URL.
        error: the message.
        dropped: it is the error that `on_invalid: drop` asks for.
    """

    recording: str
    error: str
    dropped: bool = False


class AnyPieces(Protocol):
    """Pieces by key, shared by several processes: a `PieceStore`, or `BucketPieces`."""

    @property
    def folder(self) -> Path:
        """The folder or the URL, for messages."""

    @property
    def shared(self) -> bool:
        """Whether other exports may use the pieces at the same time."""

    @property
    def keeps_failures(self) -> bool:
        """Whether errors of recordings are recorded for later exports."""

    def find(self, key: str) -> Path | None:
        """Return a complete piece, None if there is none."""

    def failure(self, key: str) -> PieceFailure | None:
        """Return the error that an earlier export recorded, None if there is none."""

    def fail(self, key: str, failure: PieceFailure) -> None:
        """Record the error of a recording for later exports, unless one is recorded."""

    def count(self) -> int:
        """Return the number of complete pieces."""

    def used(self) -> bool:
        """Whether there may be pieces or errors of an earlier export."""

    def note(self, name: str, text: str = "") -> None:
        """Write a note for other exports that share the pieces, in place of one of this name."""

    def noted(self, name: str) -> str | None:
        """Return the text of a note, None if there is none."""

    def notes(self) -> frozenset[str]:
        """Return the names of all notes."""

    def draft(self) -> AbstractContextManager[Path]:
        """Yield a new local folder for a piece, which is removed on exit unless it was committed."""

    def check(self) -> None:
        """Raise an error if a piece cannot be stored."""

    def commit(self, draft: Path, key: str) -> tuple[Path, bool]:
        """Make a draft the piece of a key, unless another process has made the same piece.

        Returns:
            The piece, and whether it replaces a damaged one.
        """

    def tidy(self) -> None:
        """Remove the drafts of stopped processes."""
