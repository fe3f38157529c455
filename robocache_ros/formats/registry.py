"""The formats that exports write, by name: those of this package, and those of others through entry points."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from robocache_ros.extras import need
from robocache_ros.formats.dataset import ExportedDataset
from robocache_ros.formats_by_name import FormatsByName
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions

ENTRY_POINTS = "robocache_ros.formats"
# Format name -> module and name of its `DatasetFormat`, imported on first use.
FORMATS = {
    "lerobot": "robocache_ros.formats.lerobot.write:LEROBOT",
    "lerobot21": "robocache_ros.formats.lerobot.write:LEROBOT21",
    "mcap": "robocache_ros.formats.mcap.write:MCAP",
    "rlds": "robocache_ros.formats.rlds.write:RLDS",
    "webdataset": "robocache_ros.formats.webdataset.write:WEBDATASET",
    "robomimic": "robocache_ros.formats.robomimic.write:ROBOMIMIC",
    "diffusion_policy": "robocache_ros.formats.diffusion_policy.write:DIFFUSION_POLICY",
    "delta": "robocache_ros.formats.delta.write:DELTA",
}
_BY_NAME = FormatsByName("formats", FORMATS, ENTRY_POINTS)
LIBRARIES = {"rosbags.rosbag2": "bags", "pyarrow.parquet": "export", "PIL.Image": "export", "jinja2": "export"}


class DatasetFormat(Protocol):
    """One dataset format.

    Attributes:
        name: as given to `--format`.
        title: a line for the help.
        entry: the file or folder, directly in the folder of the dataset, by which readers recognize a dataset. It is
            moved to the dataset's final location after the others.

    A format of another package may also have an attribute `validator`, which `robocache validate` uses: a
    `robocache_ros.formats.validate.Validator`.
    """

    name: str
    title: str
    entry: str

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse a spec or options that the format cannot store, before a recording is read.

        Errors:
            RoboCacheError: the format cannot store a stream.
        """

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Return the encoding of a stream's 8-bit images: one of `media.picture_writer.ENCODINGS`; None to omit them.

        av1 becomes h264 where the size of the images or PyAV does not allow it.
        """

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset into an empty folder. Equal pieces in equal order give equal bytes.

        Called in any process, maybe in a thread, with all pieces. A `WrittenByTasks` is written in parts instead.
        """


def known_formats() -> tuple[str, ...]:
    """Return the names of all formats, those of other packages last."""
    return _BY_NAME.names()


def load_format(name: str) -> DatasetFormat:
    """Load a format by name. Imports the libraries that the format and the recording reader need.

    Errors:
        RoboCacheError: there is no such format, or it cannot be imported.
    """
    found: DatasetFormat = _BY_NAME.load(name)
    for library, extra in LIBRARIES.items():
        need(library, extra)
    return found
