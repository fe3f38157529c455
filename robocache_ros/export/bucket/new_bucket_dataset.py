"""A new dataset in a bucket: made in a local folder, then put into the target."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.bucket.bucket_pieces import local_drafts
from robocache_ros.export.bucket.bucket_target import BucketTarget
from robocache_ros.export.outputs.new_dataset import NewDataset, piece_store
from robocache_ros.export.publish import list_entries
from robocache_ros.remote.store_errors import StoreError


# More than 50 lines, because of its docstring.
@contextmanager
def new_bucket_dataset(
    url: str,
    digest: str,
    count: int,
    entries: Sequence[str],
    *,
    overwrite: bool = False,
    pieces: str | Path | None = None,
) -> Iterator[NewDataset]:
    """Yield a local folder for a new dataset. On exit its files are put into the target, the entries last.

    Pieces stay after an exception, and are removed when the dataset is complete, unless they are shared. If another
    export of the same plan completes the dataset first, an error of this one is that its pieces are gone: it is not
    raised, and `NewDataset.by_another` is set.

    Args:
        url: of the target.
        digest: of what the dataset consists of. Exports of one digest work together; others are refused.
        count: number of pieces of the dataset.
        entries: files and folders by which readers recognize the datasets of the export.
        overwrite: replace a dataset in the target; other objects there are kept.
        pieces: a folder or a URL of pieces that are kept, and that other exports use as well; None: in the target.

    Errors:
        StoreError: a bucket cannot be used. `ObjectStore.check` finds that out earlier.
        RoboCacheError: another export is writing to the target, it is not empty, or is not a dataset to overwrite.
    """
    target = BucketTarget(url, digest, count, entries)
    store = piece_store(url, pieces)
    plan, is_ours = target.begin(overwrite=overwrite)
    with local_drafts().draft() as draft:
        folder = draft / "dataset"
        folder.mkdir()
        new = NewDataset(folder, draft / "scratch", store, target.plans.staging(plan))
        try:
            store.tidy()
            yield new
            list_entries(folder, new.staged)
            target.publish(plan, folder, new.staged)
        except BaseException as error:
            if not isinstance(error, (RoboCacheError, OSError)) or not target.is_complete(plan):
                if is_ours:
                    with suppress(StoreError):
                        target.plans.stop(plan)
                raise
            new.by_another = True
            new.notes.append("another export of the same recordings and options has completed the dataset")
    try:
        target.plans.clear()
    except StoreError as error:
        new.notes.append(f"{error}: pieces are left; run robocache fleet gc {shlex.quote(url)}")
