"""The folder of the pieces of an unfinished export. A piece is either complete or does not exist.

<folder>/<key>/            a complete piece, renamed from its draft
              /done.json   the names and sizes of its files, written last
<folder>/draft-<id>/       a piece during the conversion
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path

from robocache_ros.export.publish import sync, sync_all

DONE = "done.json"
_DRAFT = "draft-"


class PieceStore:
    """Pieces by key, in a folder shared by several processes.

    Args:
        folder: created with the first draft.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Path | None:
        """Return a complete piece, None if there is none."""
        piece = self.folder / key
        try:
            files: dict[str, int] = json.loads((piece / DONE).read_text(encoding="utf-8"))
            complete = all((piece / name).stat().st_size == size for name, size in files.items())
        except (OSError, ValueError, AttributeError):
            return None
        return piece if complete else None

    def count(self) -> int:
        """Return the number of complete pieces."""
        return sum(1 for done in self.folder.glob(f"*/{DONE}") if not done.parent.name.startswith(_DRAFT))

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new folder for a piece. It is removed on exit unless it was committed."""
        folder = self.folder / f"{_DRAFT}{secrets.token_hex(8)}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def commit(self, draft: Path, key: str) -> Path:
        """Commit a draft as the piece of a key, unless another process has committed the same piece."""
        piece = self.folder / key
        if not self.find(key):
            shutil.rmtree(piece, ignore_errors=True)  # its files do not match its done.json
        files = {str(f.relative_to(draft)): f.stat().st_size for f in sorted(draft.rglob("*")) if f.is_file()}
        sync_all(draft)
        (draft / DONE).write_text(json.dumps(files), encoding="utf-8")
        sync(draft / DONE)
        try:
            draft.rename(piece)
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY):
                raise
        sync(self.folder)
        return piece

    def tidy(self) -> None:
        """Remove the drafts of stopped processes, and the folder if it contains no piece."""
        for draft in self.folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(self.folder)
