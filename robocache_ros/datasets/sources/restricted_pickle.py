"""Pickles of NumPy arrays and plain values, read without Python's unpickler, which runs what a pickle names.

The opcodes are interpreted here and can make nothing but lists, tuples, dictionaries, text, bytes, numbers, and
arrays of numbers or text. What NumPy's pickles call (`_reconstruct`, `scalar`, `dtype`, …) are names that this
module knows, and never functions of NumPy.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import printable
from robocache_ros.untrusted_files import DatasetFile, open_file

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
    """Interprets opcodes."""

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

    Errors:
        DatasetError: the file is missing, too large, damaged, or contains anything else.
    """
    try:
        with open_file(path) as file:
            data = file.read(PICKLE_BYTES + 1)
    except OSError as error:
        raise DatasetError(f"{printable(path)}: cannot be read ({error.strerror}); get the file") from None
    if len(data) > PICKLE_BYTES:
        raise DatasetError(f"{printable(path)}: more than {PICKLE_BYTES >> 20:,} MiB; check the file")
    stream = io.BytesIO(data)
    try:
        if data.startswith(np.lib.format.MAGIC_PREFIX):
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            if not read(stream)[2].hasobject:
                raise _PickleError("it is an array, not a pickle")
        value, _ = _finished(_Machine().run(stream), {}, MAX_DEPTH)
    except Exception as error:  # damaged pickles raise errors of any kind
        raise DatasetError(
            f"{printable(path)}: refused: {printable(error, 80)}; only arrays and plain values are read"
        ) from None
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
    """The number of values of a shape."""
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
