"""Resolves the arguments of an export: the spec with the options applied, the formats, the device."""

from __future__ import annotations

from dataclasses import replace

from robocache_ros.engine.backends.factory import resolve_device
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.episodes.idle import check_motion
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.formats import DatasetFormat, load_format
from robocache_ros.export.media.cloud_writer import has_points
from robocache_ros.export.media.copied_video import check_copy
from robocache_ros.export.pieces.convert_recording import masks_all
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.spec import FusionSpec


def resolved_spec(spec: FusionSpec, options: ExportOptions) -> FusionSpec:
    """Apply the options `rate_hz`, `media` and `on_invalid` to the spec; check the options that depend on it."""
    if options.rate_hz:
        spec = replace(spec, rate_hz=options.rate_hz)
    # In a `deployed` export, the time at which an `eager` tick is computed depends on cameras: read, but not stored.
    if options.media == "none" and not (spec.emit == "eager" and options.visibility == "deployed"):
        spec = spec.without_cameras()
    if options.on_invalid != "spec":
        streams = (s if s.is_outcome else replace(s, on_invalid=options.on_invalid) for s in spec.streams)
        spec = replace(spec, streams=tuple(streams))
    if options.points and not any(has_points(stream) for stream in spec.streams):
        raise RoboCacheError("points: no stream has voxels with the features x, y, z; add them, with reduce mean")
    if not options.trim and not masks_all(spec):
        raise RoboCacheError("trim: ticks without values are kept only where on_invalid is mask; use on_invalid mask")
    if options.trim_idle_s:
        check_motion(spec)
    if spec.actions == "required" and not any(s.role == "action" for s in Labels(spec, options).spec.vectors):
        raise RoboCacheError(
            "streams: none has role: action, which policies are trained on; give it to the stream of the commands, use "
            "--action next-observation, or state actions: none"
        )
    return spec


def load_formats(spec: FusionSpec, options: ExportOptions) -> list[DatasetFormat]:
    """Load the formats; refuse what they cannot store."""
    check_copy(spec, options)
    formats = [load_format(name) for name in options.formats]
    for format_ in formats:
        format_.check(spec, options)
    return formats


def device_of(device: str, options: ExportOptions) -> str:
    """Return the device that converts images and clouds: `cpu` or `cuda:<index>`; refuse one that is not available."""
    selected = str(resolve_device(device))
    if options.jpeg == "gpu":
        if selected == "cpu":
            raise RoboCacheError(f"jpeg: 'gpu' needs a GPU, and device {printable(device, 20)!r} is the CPU; use cuda")
        require_jpeg()
    return selected
