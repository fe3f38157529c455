"""The target of an export: a local folder, or a bucket."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robocache_ros.export.bucket.bucket_target import BucketTarget
from robocache_ros.export.bucket.new_bucket_dataset import new_bucket_dataset
from robocache_ros.export.bucket.target_plans import TargetPlans, digest_of
from robocache_ros.export.outputs.dataset_plan import DatasetPlan
from robocache_ros.export.outputs.new_dataset import NewDataset
from robocache_ros.export.pieces.plan import engine
from robocache_ros.export.target import check_target, new_dataset
from robocache_ros.export.validate.checksum_list import FILE as CHECKSUMS
from robocache_ros.remote.any_path import any_path, is_url
from robocache_ros.remote.object_store import ObjectStore


def open_target(
    out: Path, datasets: Sequence[DatasetPlan], overwrite: bool, pieces: str | Path | None, report: bool
) -> AbstractContextManager[NewDataset]:
    """Return the target of an export, as a context; see `new_dataset` and `new_bucket_dataset`.

    Args:
        out: a folder or a URL.
        datasets: that are written to it.
        overwrite: replace the datasets in it.
        pieces: a folder or a URL of pieces that are kept; None: in the target.
        report: whether reports are written.
    """
    if not is_url(out):
        last = datasets[-1].name or datasets[-1].formats[-1].entry
        return new_dataset(out, last, overwrite=overwrite, pieces=pieces)
    digest = digest_of({"engine": engine(), "report": report, "datasets": [_content(each) for each in datasets]})
    entries = [entry for dataset in datasets for entry in dataset.entries]
    count = sum(len(dataset.plan.distinct) for dataset in datasets)
    return new_bucket_dataset(str(out), digest, count, entries, overwrite=overwrite, pieces=pieces)


def target_path(out: str | Path) -> tuple[Path, Path]:
    """Return a target as it is shown, and as it is used: an absolute path, or the URL as it is."""
    shown = any_path(out, "datasets")
    return shown, shown if is_url(shown) else Path(os.path.abspath(shown))


def check_buckets(*places: str | Path | None) -> None:
    """Refuse buckets among places that an export could not write to, before it reads a recording."""
    for place in places:
        if place is not None and is_url(place):
            ObjectStore(str(place)).check()


def check_any_target(out: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder or a URL that an export would refuse because of what is in it, without writing to it."""
    if is_url(out):
        BucketTarget(str(out), "", 0, ()).check(overwrite=overwrite)
    else:
        check_target(Path(os.path.abspath(out)), overwrite=overwrite)


def identity_of(out: Path, datasets: Sequence[DatasetPlan]) -> str:
    """Return a text that is another one after the next export to the target; empty if a dataset is not there."""
    if is_url(out):
        told = TargetPlans(ObjectStore(str(out)))
        return "" if told.current() else str(told.completed().get("token", ""))
    digest = hashlib.sha256()
    for dataset in datasets:
        for format_ in dataset.formats:
            folder = out / dataset.name / (format_.name if len(dataset.formats) > 1 else "")
            try:
                digest.update((folder / CHECKSUMS).read_bytes())
            except OSError:
                return ""
    return digest.hexdigest()


def _content(dataset: DatasetPlan) -> dict[str, Any]:
    """Return what determines a dataset, except the contents of its recordings."""
    plan = dataset.plan
    return {
        "name": dataset.name,
        "spec": plan.spec.to_dict(),
        "options": asdict(plan.options),
        "encodings": plan.encodings,
        "jpeg": plan.jpeg_decoder,
        "recordings": [[str(r.path), r.start, r.stop, r.task, r.success] for r in dataset.recordings],
    }
