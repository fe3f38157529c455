"""Files from outside: where a name leads, what may open it, and text within a limit of its size."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NewType, TypeAlias
from urllib.parse import unquote

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.storage.paths import MAX_PATH, AnyPath, RemotePath, as_path, keep_for, may_be_path

# Reads a text file that a user wrote, with a limit on its size.


def read_text(path: AnyPath, hint: str, max_bytes: int) -> str:
    """Return the text of a file.

    Args:
        path: a regular file of UTF-8 text, with or without a byte order mark.
        hint: what to do if it is not, for the error.
        max_bytes: limit on its size.

    Errors:
        RoboCacheError: the file cannot be read, is not UTF-8 text, or is larger than the limit.
    """
    shown = printable(path, 60)
    try:
        if not path.is_file() and path.exists():
            raise RoboCacheError(f"{shown}: not a regular file; {hint}")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise RoboCacheError(f"{shown}: cannot be read ({error.strerror}); {hint}") from None
    except UnicodeDecodeError as error:
        raise RoboCacheError(f"{shown}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:
        if isinstance(error, RoboCacheError):
            raise
        raise RoboCacheError(f"{shown}: not a path ({printable(error, 60)}); {hint}") from None
    if len(data) > max_bytes:
        raise RoboCacheError(f"{shown}: larger than {max_bytes // 1024} KiB; {hint}")
    return text


# The files of a dataset, which is not trusted: where a name leads, and what may open it.
#
# Every reader and every validator gets its paths from here. `file_below` resolves a name that a dataset states,
# `files_below` lists files by a pattern, and `given_file` takes the file that a user gives. The functions that open a
# file take a `DatasetFile` only, which nothing else makes.


_LocalFile = NewType("_LocalFile", Path)
_RemoteFile = NewType("_RemoteFile", RemotePath)
DatasetFile: TypeAlias = _LocalFile | _RemoteFile
"""A regular file that belongs to a dataset, or a URL below that of the dataset."""

HUB_REPOSITORIES = ("datasets--", "models--")  # names of the folders of repositories in the cache of Hugging Face
# The first bytes of a container at an offset, and the name of FFmpeg's reader. Others, such as hls and concat, open
# more files than the one that they are given.
CONTAINERS = (
    *((4, kind, "mp4") for kind in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (188, b"\x47", "mpegts"),
)
MAX_VIRTUAL, MAX_SOURCES = 4, 1000  # arrays of arrays of the same file, and how many each consists of
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}


class DatasetError(RoboCacheError):
    """A file or a record of a dataset that cannot be used; the message names both."""


def path_below(root: AnyPath, name: str | Path) -> AnyPath:
    """Return the path of a name that a dataset states, which may have no file.

    Args:
        root: of the dataset, as the user gave it.
        name: relative to it.

    Errors:
        DatasetError: the name is absolute, has `..` or a protocol (also percent-encoded), or is too long.
    """
    text = str(name)
    if not may_be_path(text) or len(text) + len(str(root)) + 1 >= MAX_PATH:
        raise DatasetError(f"{printable(text, 40)}: {len(text):,} characters, not a path; check the metadata")
    decoded, before = text, ""
    while decoded != before:
        if decoded.startswith("/") or "::" in decoded or "://" in decoded or ".." in decoded.split("/"):
            raise DatasetError(f"{printable(text)}: not in the folder of the dataset; check its metadata")
        before, decoded = decoded, unquote(decoded)
    return root / text


def name_below(root: AnyPath, path: AnyPath) -> str:
    """Return the name, relative to a folder, of a path that was found in it; `.` for the folder itself."""
    if isinstance(path, Path):
        return str(path.relative_to(str(root)))
    return str(path)[len(str(root)) :].strip("/")


def file_below(root: AnyPath, name: str | Path) -> DatasetFile:
    """Return a file of a dataset; see `path_below`.

    A symbolic link may lead to another place in the dataset, and from a snapshot in the cache of Hugging Face to the
    blobs of its repository.

    Errors:
        DatasetError: as of `path_below`; the file is missing, leads out of the dataset, or is not a regular file.
    """
    path = path_below(root, name)
    if not (path.is_file() if isinstance(root, RemotePath) else stat.S_ISREG(_mode(root, name))):
        raise DatasetError(f"{printable(path)}: {_not_regular(path)}; get the file again")
    return dataset_file(path)


def folder_below(root: AnyPath, name: str | Path) -> AnyPath:
    """Return a folder of a dataset; see `file_below`.

    Errors:
        DatasetError: as of `file_below`.
    """
    path = path_below(root, name)
    if not (path.is_dir() if isinstance(root, RemotePath) else stat.S_ISDIR(_mode(root, name))):
        raise DatasetError(f"{printable(path)}: not a folder; get the dataset again")
    return path


def files_below(root: AnyPath, pattern: str) -> list[DatasetFile]:
    """Return the files of a dataset that match a pattern, sorted; see `file_below`.

    Errors:
        DatasetError: as of `file_below`.
    """
    if isinstance(root, RemotePath):
        return [_RemoteFile(path) for path in sorted(root.glob(pattern))]
    return [file_below(root, path.relative_to(root)) for path in sorted(root.glob(pattern))]


def given_file(path: str | AnyPath) -> DatasetFile:
    """Return a file that a user gives: any regular file, also through links.

    Errors:
        DatasetError: it is missing, or not a regular file.
    """
    given = as_path(path)
    if not given.is_file():
        raise DatasetError(f"{printable(given)}: {_not_regular(given)}; give the file of a dataset")
    return dataset_file(given)


def filled(template: object, **values: object) -> str:
    """Return a name by a template that a dataset states, such as `data/{chunk:03d}.parquet`, for `file_below`.

    Only names and widths of two digits are filled in: others of Python's could take any memory.

    Errors:
        KeyError: the template has another name.
    """

    def value(match: re.Match[str]) -> str:
        found = values[match[1]]
        return str(found) if match[2] is None else f"{int(str(found)):0{int(match[2])}d}"

    return re.sub(r"\{(\w+)(?::0(\d{1,2})d)?\}", value, str(template))


def open_file(path: DatasetFile) -> BinaryIO:
    """Open a file for reading.

    Errors:
        OSError: it cannot be opened. DatasetError: it is not a regular file.
    """
    if isinstance(path, RemotePath):
        return path.open()
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # otherwise a pipe waits for its writer
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise DatasetError(f"{printable(path)}: not a regular file; get the file again")
    return file


def read_bytes(path: DatasetFile) -> bytes:
    """Return the contents of a file; see `open_file`."""
    with open_file(path) as file:
        return file.read()


def open_container(path: DatasetFile) -> Any:
    """Open a video with PyAV, as the container that its first bytes tell. It opens no other file.

    Errors:
        DatasetError: its first bytes are those of no container that is read. Others are those of `open_file` and PyAV.
    """
    av = need("av", "datasets")
    with open_file(path) as file:
        head = file.read(256)
    name = next((name for at, magic, name in CONTAINERS if head[at : at + len(magic)] == magic), None)
    if name is None:
        raise DatasetError(f"{printable(path)}: damaged, or not mp4, matroska, webm, avi or mpegts; get the file again")
    # With a protocol, no part of the path is taken for one.
    return av.open(
        f"file:{os.path.abspath(path)}", format=name, options={"protocol_whitelist": "file", "enable_drefs": "0"}
    )


class Hdf5Group:
    """A group of an HDF5 file, read as one of h5py. Its arrays, of `h5py.Dataset`, are in the file itself.

    Args:
        group: a group of h5py.
        where: the file, for errors.

    Errors:
        KeyError: the group has no such member. DatasetError: it is a link, or an array in another file.
    """

    def __init__(self, group: Any, where: str) -> None:
        self.id, self.attrs, self.name, self._where = group.id, group.attrs, str(group.name), where
        self._h5py = need("h5py", "datasets")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("utf-8", "surrogateescape") for name in self.id)

    def __len__(self) -> int:
        return len(self.id)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        found = self.id
        for part in name.encode("utf-8", "surrogateescape").strip(b"/").split(b"/"):
            found = hdf5_member(found, part, self._where)
        if isinstance(found, self._h5py.h5d.DatasetID):
            return self._h5py.Dataset(found)
        if isinstance(found, self._h5py.h5g.GroupID):
            return Hdf5Group(self._h5py.Group(found), self._where)
        raise KeyError(f"{printable(name, 40)} is neither a group nor an array")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return the names and the members."""
        return ((name, self[name]) for name in self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a member, or `default` if there is none."""
        try:
            return self[name]
        except KeyError:
            return default


class Hdf5File(Hdf5Group):
    """An HDF5 file that is open for reading; a context manager. See `open_hdf5`."""

    def __init__(self, path: DatasetFile, where: str) -> None:
        self._file = need("h5py", "datasets").File(path, "r")
        keep_for(path, self._file)
        super().__init__(self._file, where)
        self.filename = str(path)

    def __enter__(self) -> Hdf5File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def open_hdf5(path: DatasetFile, where: str = "") -> Hdf5File:
    """Open an HDF5 file.

    Args:
        path: of the file.
        where: for errors; the path by default.

    Errors:
        DatasetError: it is missing or not HDF5.
    """
    where = where or printable(path)
    try:
        return Hdf5File(path, where)
    except OSError as error:
        reason = "not there" if isinstance(error, FileNotFoundError) else f"not HDF5 ({printable(error, 60)})"
        reason = "it ends early" if "truncated file" in str(error) else reason
        raise DatasetError(f"{where}: {reason}; get the file again") from None


def hdf5_member(group: Any, name: bytes, where: str, depth: int = MAX_VIRTUAL) -> Any:
    """Return what a group of h5py's low-level interface has by a name, of a file that is not trusted.

    Errors:
        KeyError: there is nothing of the name.
        DatasetError: it is a link, or an array whose values are in another file or need code that is not part of HDF5.
    """
    h5py = need("h5py", "datasets")
    if not isinstance(group, h5py.h5g.GroupID) or not name or name == b"." or not group.links.exists(name):
        raise KeyError(f"no {printable(name.decode('utf-8', 'replace'), 40)}")
    path = b"/".join(((h5py.h5i.get_name(group) or b"").strip(b"/"), name)).strip(b"/")
    shown = f"{where}: {printable(path.decode('utf-8', 'replace'), 60)}"
    if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
        raise DatasetError(f"{shown} is a link to elsewhere; copy the data into the file")
    found = h5py.h5o.open(group, name)
    if isinstance(found, h5py.h5d.DatasetID):
        form = found.get_create_plist()
        if form.get_external_count() or not _is_within(h5py, form, found, where, depth):
            raise DatasetError(f"{shown} is in other files; copy it into this one")
        for index in range(form.get_nfilters()):
            if (code := form.get_filter(index)[0]) not in FILTERS:  # HDF5 looks for a plugin and runs it
                raise DatasetError(f"{shown} has filter {code}, which is not part of HDF5; repack it with gzip or lzf")
    return found


def _is_within(h5py: Any, form: Any, array: Any, where: str, depth: int) -> bool:
    """Whether an array is not virtual, or made of a few arrays of the same file, which are checked like it."""
    if form.get_layout() != h5py.h5d.VIRTUAL:
        return True
    count = form.get_virtual_count()
    if not depth or count > MAX_SOURCES or any(form.get_virtual_filename(index) != "." for index in range(count)):
        return False
    for name in {form.get_virtual_dsetname(index) for index in range(count)}:
        source = h5py.h5g.open(array, b"/")
        for part in name.encode("utf-8", "surrogateescape").strip(b"/").split(b"/"):
            if b"%" in part:  # a pattern of names
                return False
            source = hdf5_member(source, part, where, depth - 1)
    return True


def _mode(root: Path, name: str | Path) -> int:
    """The mode of what a name below a local root leads to."""
    place, path = os.fspath(root), root / name
    try:
        for part in str(name).split("/"):
            place = f"{place}/{part}"
            if stat.S_ISLNK(os.lstat(place).st_mode):
                _check_link(root, path)
                break
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(f"{printable(path)}: not there; get the file again") from None
    except OSError as error:
        raise DatasetError(f"{printable(path)}: cannot be read ({error.strerror}); get the file") from None


def _check_link(root: Path, path: Path) -> None:
    """Refuse a link that leads out of a dataset."""
    top, found = Path(os.path.realpath(root)), Path(os.path.realpath(path))
    snapshots = (each for each in (top, *top.parents) if each.name == "snapshots")
    blobs = (each.parent / "blobs" for each in snapshots if each.parent.name.startswith(HUB_REPOSITORIES))
    if not any(found.is_relative_to(each) for each in (top, *blobs)):
        raise DatasetError(f"{printable(path)}: is a link out of the dataset; copy what it leads to into the dataset")


def dataset_file(path: AnyPath) -> DatasetFile:
    """Return a path as one that was checked."""
    return _RemoteFile(path) if isinstance(path, RemotePath) else _LocalFile(path)


def _not_regular(path: AnyPath) -> str:
    return "not a regular file" if path.exists() else "not there"
