"""The formats of datasets by name: what writes, reads and checks each one, here and in other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

if TYPE_CHECKING:  # also what imports NumPy: `robocache export --help` shows the names
    from robocache_ros.formats.check import Findings
    from robocache_ros.formats.dataset import ExportedDataset
    from robocache_ros.formats.read import EpisodeSource
    from robocache_ros.spec import FusionSpec, StreamSpec
    from robocache_ros.spec.dataset import DatasetOptions
    from robocache_ros.storage.paths import AnyPath


@dataclass(frozen=True)
class Format:
    """A format of this package: `module:name` of each of its parts below `formats`; empty if it has none."""

    name: str
    write: str = ""  # a `DatasetFormat`
    read: str = ""  # returns an `EpisodeSource`, given the dataset and the options of the format
    check: str = ""  # a `Validator`

    def load(self, part: str) -> Any:
        """Import a part."""
        module, _, name = part.partition(":")
        return getattr(import_module(f"robocache_ros.formats.{module}"), name)


_ALL = (
    Format("lerobot", "lerobot.write:LEROBOT", "lerobot.read:LeRobotEpisodes", "lerobot.check:LEROBOT_V3"),
    Format("lerobot21", "lerobot.write:LEROBOT21", "lerobot.read:LeRobotEpisodes", "lerobot.check:LEROBOT_V21"),
    Format("mcap", "mcap:MCAP", "mcap:McapEpisodes", "mcap:MCAP_CHECK"),
    Format("rlds", "rlds.write:RLDS", "rlds.read:open_rlds", "rlds.check:RLDS_CHECK"),
    Format("webdataset", "webdataset:WEBDATASET", "webdataset:WebDatasetEpisodes", "webdataset:WEBDATASET_CHECK"),
    Format("robomimic", "robomimic:ROBOMIMIC", "robomimic:RobomimicDemos", "robomimic:ROBOMIMIC_CHECK"),
    Format(
        "diffusion_policy",
        "diffusion_policy:DIFFUSION_POLICY",
        "diffusion_policy:ReplayBufferEpisodes",
        "diffusion_policy:ZARR_CHECK",
    ),
    Format("delta", "delta.write:DELTA", "delta.read:DeltaEpisodes", "delta.check:DELTA_CHECK"),
    Format("calvin", read="calvin:CalvinSteps"),
    Format("hdf5", read="hdf5:Hdf5Trajectories"),
)
FORMATS = {each.name: each for each in _ALL}
WRITERS = tuple(name for name, each in FORMATS.items() if each.write)
READERS = tuple(name for name, each in FORMATS.items() if each.read)
# Entry points of other packages: a `DatasetFormat`, which may also have a `reader` and a `validator`; only a reader.
FORMAT_GROUP, READER_GROUP = "robocache_ros.formats", "robocache_ros.datasets"
LIBRARIES = {"rosbags.rosbag2": "bags", "pyarrow.parquet": "export", "PIL.Image": "export", "jinja2": "export"}


class DatasetFormat(Protocol):
    """What writes the datasets of one format.

    Attributes:
        name: as given to `--format`.
        title: a line for the help.
        entry: the file or folder, directly in the folder of the dataset, by which readers recognize a dataset. It is
            moved to the dataset's final location after the others.

    A format of another package may also have an attribute `reader`, which `open_dataset` calls with the path of a
    dataset and returns an `EpisodeSource`, and an attribute `validator`, a `Validator` for `robocache validate`.
    """

    name: str
    title: str
    entry: str

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse a spec or options that the format cannot store by a RoboCacheError, before a recording is read."""

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Return the encoding of a stream's 8-bit images: one of `pictures.ENCODINGS`; None to omit them.

        av1 becomes h264 where the size of the images or PyAV does not allow it.
        """

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset into an empty folder. Equal pieces in equal order give equal bytes.

        Called in any process, maybe in a thread, with all pieces. A `WrittenByTasks` is written in parts instead.
        """


class Validator(Protocol):
    """Validates the datasets of one format.

    Attributes:
        title: name of the format in the output.
    """

    title: str

    def recognizes(self, dataset: Path) -> bool:
        """Return whether a folder or file is a dataset of this format, however damaged."""

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong with the dataset `findings.dataset`.

        Errors:
            RoboCacheError: the checks cannot go on; the message becomes a finding.
        """


def known_formats() -> tuple[str, ...]:
    """Return the names of the formats that are written, those of other packages last."""
    return (*WRITERS, *sorted(set(_declared(FORMAT_GROUP)) - set(WRITERS)))


def load_format(name: str) -> DatasetFormat:
    """Load what writes a format. Imports the libraries that the format and the recording reader need."""
    found: DatasetFormat
    if name in WRITERS:
        found = FORMATS[name].load(FORMATS[name].write)
    elif point := _declared(FORMAT_GROUP).get(name):
        found = _load(point, "formats")
    else:
        raise _unknown("formats", name, known_formats())
    for library, extra in LIBRARIES.items():
        need(library, extra)
    return found


def known_readers() -> tuple[str, ...]:
    """Return the names of the formats that are read, those of other packages last."""
    return (*READERS, *sorted({*_declared(READER_GROUP), *_declared_parts("reader")} - set(READERS)))


def open_source(name: str, path: str | AnyPath, **options: Any) -> EpisodeSource:
    """Return the episodes of a dataset in the format of this name, opened with its options.

    Errors:
        DatasetError: there is no such format, or the package that has it cannot be imported.
        RoboCacheError: the format has no such option.
    """
    from robocache_ros.formats.read import DatasetError, known_names

    opens = _reader(name)
    try:
        parameters = signature(opens).parameters.values()
    except (TypeError, ValueError) as error:  # a number has none, nor has `str`
        raise DatasetError(f"format: {name} is {printable(opens, 60)}, which opens no dataset; reinstall it") from error
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        known_names(f"options of {name}", options, [each.name for each in parameters if each.kind is each.KEYWORD_ONLY])
    source: EpisodeSource = opens(path, **options)
    if not all(hasattr(source, method) for method in ("__len__", "read", "span_ns")):
        raise DatasetError(f"format: {name} returns {type(source).__name__}, not an EpisodeSource; reinstall it")
    return source


def _reader(name: str) -> Callable[..., EpisodeSource]:
    from robocache_ros.formats.read import DatasetError

    found: Callable[..., EpisodeSource] | None
    try:
        if name in READERS:
            found = FORMATS[name].load(FORMATS[name].read)
        elif point := _declared(READER_GROUP).get(name):
            found = _load(point, "format")
        elif point := _declared(FORMAT_GROUP).get(name):
            found = getattr(_load(point, "format"), "reader", None)
        else:
            found = None
    except RoboCacheError as error:
        raise DatasetError(str(error)) from error
    if found is None:
        raise DatasetError(str(_unknown("format", name, known_readers())))
    return found


def validators() -> dict[str, Validator]:
    """Return the validators of this package, then those that formats of other packages bring, by format."""
    return {name: each.load(each.check) for name, each in FORMATS.items() if each.check} | _declared_parts("validator")


def format_of(path: Path) -> str | None:
    """Return the name of the format of a dataset, by the files that it has; None if it is none of them."""
    for each in FORMATS.values():
        if each.check and each.read and each.load(each.check).recognizes(path):
            return each.name
    return None


def _declared(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of other packages by name."""
    return _points(group, tuple(sys.path))


@lru_cache(maxsize=8)
def _points(group: str, places: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Find entry points, which takes tens of milliseconds, once for the places where packages are."""
    return {point.name: point for point in reversed([*entry_points(group=group)])}


def _declared_parts(part: str) -> dict[str, Any]:
    """Return what the formats of other packages bring in addition to a writer, by format; not of those without it."""
    found = {}
    for name, point in sorted(_declared(FORMAT_GROUP).items()):
        with suppress(RoboCacheError):  # a format that cannot be imported
            found[name] = getattr(_load(point, "formats"), part, None)
    return {name: each for name, each in found.items() if each is not None and name not in FORMATS}


def _load(point: EntryPoint, what: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        where = printable(point.value, 60)
        raise RoboCacheError(
            f"{what}: {point.name} of {where} cannot be imported ({printable(error, 60)}); reinstall it"
        ) from error


def _unknown(what: str, name: str, known: tuple[str, ...]) -> RoboCacheError:
    listed = printable(", ".join(known), 120)
    return RoboCacheError(f"{what}: {printable(name, 40)!r} is not one of {listed}; choose one of them")
