"""Read CALVIN datasets: a file of arrays per step, and annotations in a pickle, which is read without running it."""

from __future__ import annotations

import io
import math
import os
import pickletools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.file_limits import IMAGE_RATIO, check_decoded
from robocache_ros.formats.columns import ArrayRows
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    MAX_VECTOR_BYTES,
    DatasetError,
    SourceEpisode,
    Stream,
    limited_bytes,
    nominal_span,
    nominal_stamps,
    numbers,
    refusing,
)
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, folder_below, open_file

# Pickles of NumPy arrays and plain values, read without Python's unpickler, which runs what a pickle names.
#
# The opcodes are interpreted here and can make nothing but lists, tuples, dictionaries, text, bytes, numbers, and
# arrays of numbers or text. What NumPy's pickles call (`_reconstruct`, `scalar`, `dtype`, …) are names that this
# module knows, and never functions of NumPy.


PICKLE_BYTES = 1 << 30
MAX_OPCODES = 5_000_000
MAX_DEPTH = 32  # of values in values
MAX_VALUES = 5_000_000  # of the result, each counted as often as it occurs
MAX_NUMBER = 2**64
# The names under which versions of NumPy pickle arrays and numbers.
_NAMES = {
    **{
        (f"numpy.{core}.{module}", name): name
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
    },
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",  # bytes in pickles of protocol 2
}
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU]\d{1,6}|O8?)")
_STATE_ITEMS = 8  # of a dtype: version, order, subarray, names, fields, item size, alignment, flags
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSHED = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_PUT, _GET = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _PickleError(ValueError):
    """The pickle has something else."""


@dataclass(frozen=True)
class _Name:
    """One of `_NAMES`."""

    name: str


@dataclass
class _DType:
    """A dtype of numbers, text or objects."""

    text: str
    order: str = "="

    def numpy(self) -> np.dtype[Any]:
        if self.text.startswith("O"):
            raise _PickleError("it contains objects")
        dtype = np.dtype(self.text)
        return dtype.newbyteorder("<" if self.order == "<" else ">") if self.order in "<>" else dtype


@dataclass
class _Array:
    """An array: numbers or text, or the values of objects, once its state is known."""

    value: Any = None


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._encoded = 0  # bytes of text that was encoded, each time that it was

    def run(self, stream: io.BytesIO) -> Any:
        """Return what a pickle makes, with `_Array` in it."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count >= MAX_OPCODES:
                raise _PickleError(f"it has more than {MAX_OPCODES:,} values")
            if opcode.name == "STOP":
                return self._pop()
            self._step(opcode.name, argument)
        raise _PickleError("it does not end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            if isinstance(argument, int) and abs(argument) >= MAX_NUMBER:
                raise _PickleError("it contains an integer of more than 64 bits")
            self._stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _PUT:
            self._memo[argument] = self._top()
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._top()
        elif name in _GET:
            self._stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(self._stack))
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            self._stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("LIST", "TUPLE", "DICT"):
            values = self._marked()
            self._stack.append(tuple(values) if name == "TUPLE" else values if name == "LIST" else {})
            if name == "DICT":
                self._set(values)
        elif name in _TUPLES:
            self._stack.append(tuple(self._popped(_TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            values = self._popped(1) if name == "APPEND" else self._marked()
            self._top(list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            self._set(self._popped(2) if name == "SETITEM" else self._marked())
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            found = argument.split(" ", 1) if name == "GLOBAL" else self._popped(2)
            if tuple(found) not in _NAMES:
                raise _PickleError(f"it contains {'.'.join(map(str, found))}")
            self._stack.append(_Name(_NAMES[tuple(found)]))
        elif name == "REDUCE":
            function, arguments = self._popped(2)
            if not isinstance(function, _Name) or not isinstance(arguments, tuple):
                raise _PickleError("it calls something else than a function of NumPy")
            if function.name == "encode":
                self._encoded += len(arguments[0])
                if self._encoded > PICKLE_BYTES:
                    raise _PickleError("it encodes the same text again and again")
            self._stack.append(_called(function.name, arguments))
        elif name == "BUILD":
            (state,) = self._popped(1)
            _build(self._top(), state)
        elif name == "POP":
            self._pop()
        elif name == "POP_MARK":
            self._marked()
        elif name == "DUP":
            self._stack.append(self._top())
        elif name not in ("PROTO", "FRAME"):
            raise _PickleError(f"it contains {name}")

    def _top(self, kind: type[Any] = object) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0) or not isinstance(self._stack[-1], kind):
            raise _PickleError("its opcodes are in no order")
        return self._stack[-1]

    def _pop(self) -> Any:
        self._top()
        return self._stack.pop()

    def _popped(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _marked(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _set(self, values: list[Any]) -> None:
        keys = values[::2]
        if len(values) % 2 or not all(isinstance(key, str) for key in keys):
            raise _PickleError("it contains a dictionary whose keys are not text")
        self._top(dict).update(zip(keys, values[1::2], strict=True))


def load_arrays(path: DatasetFile) -> Any:
    """Return the value in a pickle, or in an .npy file of one pickled object, of NumPy arrays and plain values.

    An array of objects becomes a list, or the object if it has no dimensions.
    """
    data = limited_bytes(path, printable(path), PICKLE_BYTES)
    stream = io.BytesIO(data)
    # Damaged pickles raise errors of any kind.
    with refusing(printable(path), "refused", "only arrays and plain values are read", (Exception,)):
        if data.startswith(np.lib.format.MAGIC_PREFIX):
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            if not read(stream)[2].hasobject:
                raise _PickleError("it is an array, not a pickle")
        value, _ = _finished(_Machine().run(stream), {}, MAX_DEPTH)
    return value


def _called(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return what a function of NumPy would make of arguments."""
    if name == "dtype":
        text = arguments[0]
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise _PickleError(f"it contains dtype {printable(text, 30)}")
        return _DType(text)
    if name == "_reconstruct":
        if arguments[0] != _Name("ndarray"):
            raise _PickleError("it contains an array of another type")
        return _Array()
    if name == "scalar":
        dtype, data = arguments
        return _numbers((), _kind(dtype), data, "C")[()]
    if name == "_frombuffer":
        data, dtype, shape, order = arguments
        return _Array(_numbers(shape, _kind(dtype), data, order))
    if name == "encode":
        text, encoding = arguments
        if encoding != "latin1" or not isinstance(text, str):
            raise _PickleError(f"it contains text in {printable(encoding, 30)}")
        return text.encode("latin1")
    raise _PickleError(f"it calls numpy.{name}")


def _build(made: Any, state: Any) -> None:
    """Complete a dtype or an array."""
    if isinstance(made, _DType) and isinstance(state, tuple):
        plain = len(state) == _STATE_ITEMS and all(item is None for item in state[2:5])
        if not plain or state[1] not in ("<", ">", "|", "="):
            raise _PickleError("it contains a dtype with fields, subarrays or metadata")
        made.order = state[1]
    elif isinstance(made, _Array) and made.value is None and isinstance(state, tuple):
        *_, shape, dtype, is_fortran, data = state
        if _kind(dtype).text.startswith("O"):
            count = _count(shape)
            if len(shape) > 1 or not isinstance(data, list) or len(data) != count:
                raise _PickleError("it contains objects in several dimensions")
            made.value = data if shape else data[0]
        else:
            made.value = _numbers(shape, _kind(dtype), data, "F" if is_fortran else "C")
    else:
        raise _PickleError("it sets the state of something else than an array")


def _kind(dtype: Any) -> _DType:
    if not isinstance(dtype, _DType):
        raise _PickleError("it contains an array without a dtype")
    return dtype


def _count(shape: Any) -> int:
    if not isinstance(shape, tuple) or len(shape) > MAX_DEPTH or not all(type(n) is int and n >= 0 for n in shape):
        raise _PickleError("it contains an array without a shape")
    return math.prod(shape)


def _numbers(shape: Any, dtype: _DType, data: Any, order: Any) -> NDArray[Any]:
    """An array of numbers or text, of bytes of its own."""
    kind = dtype.numpy()
    if not isinstance(data, bytes) or len(data) != _count(shape) * kind.itemsize or order not in ("C", "F"):
        raise _PickleError("it contains an array of another size than that of its data")
    return np.frombuffer(data, kind).reshape(shape, order=order) if data else np.empty(shape, kind)


def _finished(value: Any, done: dict[int, tuple[Any, int] | None], depth: int) -> tuple[Any, int]:
    """Return a value with arrays in place of `_Array`, and the number of values in it. `done` has those seen."""
    if not isinstance(value, list | tuple | dict | _Array):
        if isinstance(value, _Name | _DType):
            raise _PickleError("it contains a function or a dtype as a value")
        return value, 1
    if id(value) in done:
        if (seen := done[id(value)]) is None:
            raise _PickleError("it contains itself")
        return seen
    if not depth:
        raise _PickleError(f"it is nested more than {MAX_DEPTH} deep")
    done[id(value)] = None
    made: Any
    if isinstance(value, _Array):
        made, count = _finished(value.value, done, depth - 1)
    else:
        parts = [_finished(each, done, depth - 1) for each in (value.values() if isinstance(value, dict) else value)]
        values, count = [each for each, _ in parts], 1 + sum(number for _, number in parts)
        made = dict(zip(value, values, strict=True)) if isinstance(value, dict) else type(value)(values)
    if count > MAX_VALUES:
        raise _PickleError(f"it has more than {MAX_VALUES:,} values")
    done[id(value)] = made, count
    return made, count


# CALVIN: one npz file per step, recordings as ranges of steps, and language as ranges with an instruction.
#
# No stamps are stored; the published rate is 30 Hz.


RATE_HZ = 30.0
LANGUAGE = "lang_annotations/auto_lang_ann.npy"
RANGES = "ep_start_end_ids.npy"
PROPRIO, ACTIONS = "robot_obs", ("rel_actions", "actions")
ALL = "all"
MAX_STEP_BYTES = 256 << 20  # of an array of a step


@dataclass(frozen=True)
class _Steps:
    first: int
    last: int  # inclusive
    task: str = ""


class CalvinSteps:
    """The episodes of a split of CALVIN.

    Args:
        path: the dataset, or the folder of a split.
        split: training or validation, if `path` is the dataset.
        tasks: names of tasks, such as `open_drawer`: an episode is a range that was annotated with one of them.
            `["all"]`: all annotated ranges, or the whole recordings where there are no annotations. Empty: the whole
            recordings, without language.
        cameras: static and gripper.
        actions: rel_actions (relative to the last step, scaled, within -1 … 1) or actions (absolute).
    """

    name = "calvin"

    def __init__(
        self,
        path: str | AnyPath,
        *,
        split: str = "training",
        tasks: Sequence[str] = (ALL,),
        cameras: Sequence[str] = ("static", "gripper"),
        actions: str = ACTIONS[0],
    ) -> None:
        folder = as_path(path)
        self.folder = (
            folder if (folder / RANGES).exists() or not (folder / split).is_dir() else folder_below(folder, split)
        )
        if actions not in ACTIONS:
            raise DatasetError(
                f"actions: {printable(actions, 40)} is not one of {', '.join(ACTIONS)}; choose one of them"
            )
        self._actions, self._cameras = actions, tuple(cameras)
        self.files = (self.folder / RANGES, self.folder / LANGUAGE)
        recordings = _ranges(_array(self.folder), self.folder / RANGES)
        if not tasks or (list(tasks) == [ALL] and not (self.folder / LANGUAGE).exists()):
            self._episodes = [_Steps(first, last) for first, last in recordings]
        else:
            self._episodes = self._annotated(tasks)

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are read when they are asked for."""
        steps = self._episodes[index]
        count = steps.last - steps.first + 1
        stamps = nominal_stamps(count, RATE_HZ)
        where = f"{printable(self.folder, 60)}: steps {steps.first} to {steps.last}"
        found: dict[str, list[NDArray[Any]]] = {PROPRIO: [], self._actions: []}
        for step in range(steps.first, steps.last + 1):
            for key, value in _read_step(self.folder, step, found).items():
                found[key].append(value)
                if value.nbytes * count > MAX_VECTOR_BYTES:
                    raise DatasetError(f"{where}: {printable(key, 40)}: {value.nbytes:,} bytes a step; check the files")
        streams = {}
        for name, key, role in (("proprio", PROPRIO, "observation"), ("actions", self._actions, "action")):
            streams[name] = Stream(
                name, stamps, numbers(_stacked(found[key], f"{where}: {key}"), f"{where}: {key}"), False, role
            )
        for camera in self._cameras:
            name, read = f"vision/{camera}", partial(_image, self.folder, steps.first, f"rgb_{camera}")
            streams[name] = Stream(name, stamps, ArrayRows(count, read, f"{where}: rgb_{camera}"), False)
        return SourceEpisode(streams, steps.task, self.name, where, finite=True)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        steps = self._episodes[index]
        return nominal_span(steps.last - steps.first + 1, RATE_HZ)

    def _annotated(self, tasks: Sequence[str]) -> list[_Steps]:
        """Return the annotated ranges of some tasks."""
        path, everything = self.folder / LANGUAGE, list(tasks) == [ALL]
        stated = load_arrays(file_below(self.folder, LANGUAGE))
        with refusing(printable(path), "not CALVIN's annotations", "get it again"):
            texts, names = list(stated["language"]["ann"]), list(stated["language"]["task"])
            ranges = _ranges(np.array(stated["info"]["indx"], np.int64), path)
        if not len(texts) == len(names) == len(ranges):
            raise DatasetError(f"{printable(path)}: {len(texts)} texts for {len(ranges)} ranges; get the file again")
        if not everything and (unknown := [task for task in tasks if task not in names]):
            known = ", ".join(sorted({printable(name, 40) for name in names})[:8])
            raise DatasetError(
                f"tasks: no {printable(unknown[0], 40)} in {printable(path, 60)}; there are {known}"[:199]
            )
        annotated = zip(ranges, texts, names, strict=True)
        return [_Steps(*steps, str(text)) for steps, text, name in annotated if everything or name in tasks]


def _image(folder: AnyPath, first: int, key: str, row: int) -> NDArray[np.uint8]:
    """Return an image of a camera, given the first step of the episode."""
    image = _read_step(folder, first + row, (key,))[key]
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        where = f"{printable(folder, 60)}: step {first + row}: {key}"
        raise DatasetError(f"{where}: {image.dtype} {image.shape}, not an 8-bit RGB image; choose other cameras")
    return image


def _stacked(values: list[NDArray[Any]], where: str) -> NDArray[Any]:
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise DatasetError(f"{where}: its shape differs from step to step; get the files again")
    return np.stack(values)


def _read_step(folder: AnyPath, step: int, keys: Any) -> dict[str, NDArray[Any]]:
    path = file_below(folder, f"episode_{step:07d}.npz")
    where = printable(path)
    with (
        refusing(where, "damaged", errors=(Exception,)),
        open_file(path) as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        for key in keys:
            label = f"{where}: {printable(key, 40)}"
            if f"{key}.npy" not in arrays.zip.namelist():
                raise DatasetError(f"{label} is not in it; choose another camera or get the file again")
            member = arrays.zip.getinfo(f"{key}.npy")
            if member.file_size > MAX_STEP_BYTES:
                raise DatasetError(f"{label}: {member.file_size:,} bytes; check the file")
            check_decoded(member.file_size, member.compress_size, label, IMAGE_RATIO)
        found = {key: arrays[key] for key in keys}
        if not all(isinstance(value, np.ndarray) for value in found.values()):
            raise DatasetError(f"{where}: damaged (a header of an array); get the file again")
        return found


def _array(folder: AnyPath) -> NDArray[Any]:
    path = file_below(folder, RANGES)
    with refusing(printable(path), "damaged", "give the folder of a CALVIN dataset", (Exception,)):
        array: NDArray[Any] = np.lib.format.open_memmap(os.fspath(path), "r")
    return array


def _ranges(ranges: NDArray[Any], path: AnyPath) -> list[tuple[int, int]]:
    """Return (N, 2) ranges of steps."""
    if ranges.ndim != 2 or ranges.shape[1] != 2 or ranges.dtype.kind not in "iu" or len(ranges) > MAX_EPISODES:
        raise DatasetError(f"{printable(path)}: {ranges.dtype} {ranges.shape}, not ranges of steps; get the file again")
    found = [(int(first), int(last)) for first, last in ranges]
    for first, last in found:
        if not 0 <= first <= last < first + MAX_STEPS:
            raise DatasetError(f"{printable(path)}: {first} to {last} is not a range of steps; get the file again")
    return found
