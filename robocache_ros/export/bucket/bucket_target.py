"""The target of an export in a bucket: readers find a complete dataset in it, or no dataset.

<out>/.robocache/plans/        which export makes the dataset; see `target_plans`
                /pieces/       the pieces, unless they are elsewhere; see `bucket_pieces`
                /complete.json what is left of these when the dataset is complete
<out>/…                        the dataset

The files of the dataset are put one by one, and those by which readers recognize a dataset last. Where a dataset
is replaced, the new files are put beside it first. Then the files by which readers recognize the old dataset are
deleted, the new files are copied to their names, and the other old files are deleted: readers find no dataset for as
long as the bucket takes to copy.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.bucket.target_plans import HIDDEN, TargetPlan, TargetPlans
from robocache_ros.export.publish import INFO, LISTING, dataset_entries
from robocache_ros.export.validate.checksum_list import sha256
from robocache_ros.remote.object_store import ObjectStore, name_below

# In a folder by which readers recognize a dataset: the files that they open first.
_RECOGNIZED = (INFO.name, "dataset_info.json", ".zgroup", "zarr.json", "00000000000000000000.json")


@dataclass(frozen=True)
class BucketDataset:
    """Puts the files of a dataset below a URL. It holds no connection: other processes may receive it.

    Args:
        store: the objects of the target.
        entries: files and folders by which readers recognize the datasets of the export.
    """

    store: ObjectStore
    entries: tuple[str, ...]

    def put(self, local: Path, name: str = "") -> None:
        """Put a file at a name in the dataset, or the files of a folder below it, with those of the entries last."""
        if local.is_file():
            self.store.put_file(name, local)
            return
        start = f"{name}/" if name else ""
        files = {start + name_below(local, file): file for file in local.rglob("*") if file.is_file()}
        for group in self.ordered(files):
            self.store.put_files(local, (each[len(start) :] for each in group), start)

    def ordered(self, names: Iterable[str]) -> list[list[str]]:
        """Return the names of files in groups, in the order in which they are put: the entries after the others.

        In a folder that is an entry, the file by which readers recognize it is the last.
        """
        groups: list[list[str]] = [[], [], []]
        below = tuple(f"{entry}/" for entry in self.entries)
        for name in sorted(names):
            inside = name.startswith(below)
            is_last = name in self.entries or (inside and name.rpartition("/")[2] in _RECOGNIZED)
            groups[2 if is_last else 1 if inside else 0].append(name)
        return [*groups[:2], *([name] for name in sorted(groups[2], key=lambda name: (-name.count("/"), name)))]


class BucketTarget:
    """A target during an export.

    Args:
        url: of the target.
        digest: of what the dataset consists of.
        pieces: number of pieces that it needs.
        entries: files and folders by which readers recognize the datasets of the export.
    """

    def __init__(self, url: str, digest: str, pieces: int, entries: Sequence[str]) -> None:
        self.dataset = BucketDataset(ObjectStore(url), tuple(entries))
        self.plans = TargetPlans(self.dataset.store)
        self._digest, self._pieces, self._where = digest, pieces, printable(url, 60)
        self._files: frozenset[str] = frozenset()  # of the dataset, while this export replaces another one by it

    def begin(self, *, overwrite: bool) -> tuple[TargetPlan, bool]:
        """Check the target, and add the plan to it or join it. Return the plan, and whether it was added.

        Errors:
            StoreError: the bucket cannot be used.
            RoboCacheError: another export writes to the target, or it has a dataset and `overwrite` is not set.
        """
        current = self.plans.current()
        if current and self.plans.is_done(current):
            self.plans.clear()  # an export was killed when its dataset was complete
            current = None
        plan = self.plans.begin(
            self._digest, self._pieces, lambda counting: self._replaced(counting, overwrite=overwrite)
        )
        return plan, current is None or plan.token != current.token

    def publish(self, plan: TargetPlan, folder: Path, staged: Mapping[str, str] | None = None) -> None:
        """Put a complete dataset into the target.

        Args:
            plan: of the export.
            folder: the local files.
            staged: SHA-256 of the other files, which are in the staging folder of the plan.

        Errors:
            RoboCacheError: another export has other results, or has taken the place of this one.
        """
        store, staging, staged = self.dataset.store, self.plans.staging(plan), staged or {}
        local = {name_below(folder, file): sha256(file) for file in folder.rglob("*") if file.is_file()}
        files = {**staged, **local}
        self.plans.record_files(plan, files)
        there = staging.listed() if staged else {}
        size = sum((folder / name).stat().st_size for name in local)
        size += sum(each.size for name, each in there.items() if name in staged)
        old = [name for top in plan.replaces for name in (top, *(f"{top}/{n}" for n in store.listed(f"{top}/") if n))]
        if old:
            staging.put_files(folder, local)
            self.plans.check(plan)
            self._files = frozenset(files)
            entries = [*self.plans.completed().get("entries", ()), INFO.as_posix(), *self.dataset.entries]
            for group in reversed(BucketDataset(store, tuple(map(str, entries))).ordered(old)[1:]):
                store.delete(group)
        here = () if old else local
        first, *entries_of = self.dataset.ordered(files)
        self._put(plan, first, folder, here)
        store.delete(name for name in old if name not in files)
        self.plans.check(plan, or_done=bool(old))
        for group in entries_of:
            self._put(plan, group, folder, here)
        self.plans.complete(plan, {"entries": self.dataset.entries, "files": len(files), "bytes": size})

    def _put(self, plan: TargetPlan, names: Sequence[str], folder: Path, here: Container[str]) -> None:
        """Put files of the folder, and copy the others, which are in the bucket."""
        store, copied = self.dataset.store, [name for name in names if name not in here]
        store.put_files(folder, (name for name in names if name in here))
        try:
            store.copy_files(copied, self.plans.staging(plan))
        except FileNotFoundError:  # another export of the plan has completed the dataset, and removed them
            if not all((folder / name).is_file() for name in copied):
                raise
            store.put_files(folder, copied)

    def is_complete(self, plan: TargetPlan) -> bool:
        """Whether another export of this plan has completed the dataset, and this one has not deleted files of it."""
        if not self.plans.is_done(plan):
            return False
        there = self.dataset.store.listed() if self._files else {}
        return all(name in there for name in self._files)

    def check(self, *, overwrite: bool) -> None:
        """Refuse what `begin` would refuse, except other exports, without writing to the target."""
        self._replaced(self.plans.current(), overwrite=overwrite)

    def _replaced(self, current: TargetPlan | None, *, overwrite: bool) -> set[str]:
        """Return the names of a dataset that is replaced, and of the files of a stopped export; refuse others."""
        store = self.dataset.store
        own: set[str] = set()
        if current and (files := self.plans.files(current)):  # it has begun to put them
            own = {name.partition("/")[0] for name in files} | set(current.replaces)
        present = {name for name in store.entries() if not name.startswith(HIDDEN)} - own
        if not present:
            return own
        if not overwrite:
            raise RoboCacheError(f"{self._where}: exists; choose another folder, or replace it with --overwrite")
        listed: bytes | None = None
        with suppress(FileNotFoundError):
            listed = store.get(LISTING)
        known = set(dataset_entries(listed, is_lerobot=INFO.name in store.listed(f"{INFO.parent}/")))
        if not known:
            raise RoboCacheError(
                f"{self._where}: not a dataset (no {INFO}), so it is not overwritten; choose another folder"
            )
        return own | known & (present | {LISTING})
