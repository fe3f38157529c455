"""The recordings that the arguments of a command name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.planned_recording import PlannedRecording, planned
from robocache_ros.exporter.recordings import find_recordings, load_manifest


def given_recordings(
    bags: Sequence[Path] | None, manifest: Path | None = None, *, but: Path | None = None
) -> tuple[PlannedRecording, ...]:
    """Return the recordings of a command.

    Args:
        bags: recordings, folders and globs.
        manifest: a manifest, instead of `bags`.
        but: a folder that is not searched.
    """
    if manifest is None:
        if not bags:
            raise RoboCacheError("recordings: none given; name at least one, or give --manifest FILE")
        return planned(find_recordings(bags, but=but))
    if bags:
        raise RoboCacheError("recordings: named and in a manifest; name all of them, or list all in the manifest")
    return load_manifest(manifest)
