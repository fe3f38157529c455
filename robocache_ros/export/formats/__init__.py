"""Dataset formats. A format is a pure function from the pieces of the recordings to the files of a dataset.

Formats of other packages are found through entry points of the group `robocache_ros.formats`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec, StreamSpec

ENTRY_POINTS = "robocache_ros.formats"
# Format name -> module and name of its `DatasetFormat`, imported on first use.
FORMATS = {
    "lerobot": "robocache_ros.export.formats.lerobot.lerobot_v3:LEROBOT",
    "lerobot21": "robocache_ros.export.formats.lerobot.lerobot_v21:LEROBOT21",
    "mcap": "robocache_ros.export.formats.mcap.fused_recordings:MCAP",
    "rlds": "robocache_ros.export.formats.rlds.rlds_dataset:RLDS",
    "webdataset": "robocache_ros.export.formats.webdataset.webdataset_shards:WEBDATASET",
    "robomimic": "robocache_ros.export.formats.dense.robomimic:ROBOMIMIC",
    "diffusion_policy": "robocache_ros.export.formats.dense.diffusion_policy:DIFFUSION_POLICY",
}
LIBRARIES = {"rosbags.rosbag2": "bags", "pyarrow.parquet": "export", "PIL.Image": "export", "jinja2": "export"}


class DatasetFormat(Protocol):
    """One dataset format.

    Attributes:
        name: as given to `--format`.
        title: a line for the help.
        entry: the file or folder, directly in the folder of the dataset, by which readers recognize a dataset. It is
            moved to the dataset's final location after the others.

    A format of another package may also have an attribute `validator`, which `robocache validate` uses: a
    `robocache_ros.export.validate.validators.Validator`.
    """

    name: str
    title: str
    entry: str

    def check(self, spec: FusionSpec, options: ExportOptions) -> None:
        """Refuse a spec or options that the format cannot store, before a recording is read.

        Errors:
            RoboCacheError: the format cannot store a stream.
        """

    def encoding(self, stream: StreamSpec, options: ExportOptions) -> str | None:
        """Return the encoding of a stream's 8-bit images: one of `media.picture_writer.ENCODINGS`; None to omit them.

        av1 becomes h264 where the size of the images or PyAV does not allow it.
        """

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset into an empty folder. Equal pieces in equal order give equal bytes."""


def known_formats() -> tuple[str, ...]:
    """Return the names of all formats, those of other packages last."""
    return (*FORMATS, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(FORMATS)))


def load_format(name: str) -> DatasetFormat:
    """Load a format by name. Imports the libraries that the format and the recording reader need.

    Errors:
        RoboCacheError: there is no such format, or it cannot be imported.
    """
    found: DatasetFormat
    if name in FORMATS:
        module, _, attribute = FORMATS[name].partition(":")
        found = getattr(import_module(module), attribute)
    else:
        points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
        if not points:
            raise RoboCacheError(f"formats: {printable(name, 40)!r} is not one of {', '.join(known_formats())}")
        try:
            found = points[0].load()
        except Exception as error:
            where = printable(points[0].value, 60)
            raise RoboCacheError(
                f"formats: {name} of {where} cannot be imported ({printable(error, 60)}); reinstall it"
            ) from error
    for library, extra in LIBRARIES.items():
        need(library, extra)
    return found
