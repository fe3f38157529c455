"""Pickles of NumPy arrays and plain values. Everything else, which could run code, is refused."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import printable

PICKLE_BYTES = 1 << 30
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # how NumPy of this version pickles an array, and a number
_FROM_BUFFER = np.empty(0).__reduce_ex__(5)[0]
_SCALAR = np.float64(0).__reduce__()[0]
# The names under which versions of NumPy pickle them.
_ADMITTED: dict[tuple[str, str], Any] = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
for _module in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_module}.multiarray", "_reconstruct"] = _RECONSTRUCT
    _ADMITTED[f"{_module}.multiarray", "scalar"] = _SCALAR
    _ADMITTED[f"{_module}.numeric", "_frombuffer"] = _FROM_BUFFER


def _encoded(text: str, encoding: str) -> bytes:
    """Bytes in pickles of protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it contains text in {encoding}")
    return text.encode("latin1")


_ADMITTED["_codecs", "encode"] = _encoded


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return _ADMITTED[module, name]


def load_arrays(path: Path) -> Any:
    """Return the value in a pickle, or in an .npy file of one pickled object, of NumPy arrays and plain values.

    Errors:
        DatasetError: the file is missing, too large, damaged, or contains anything else.
    """
    try:
        if path.stat().st_size > PICKLE_BYTES:
            raise DatasetError(f"{printable(path)}: more than {PICKLE_BYTES >> 20:,} MiB; check the file")
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{printable(path)}: cannot be read ({error.strerror}); get the file") from None
    stream = io.BytesIO(data)
    try:
        if data.startswith(np.lib.format.MAGIC_PREFIX):
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            if not read(stream)[2].hasobject:
                raise pickle.UnpicklingError("it is an array, not a pickle")
            value = _Unpickler(stream).load()
        else:
            value = _Unpickler(stream, encoding="latin1").load()
    except DatasetError:
        raise
    except Exception as error:  # damaged pickles raise errors of any kind
        raise DatasetError(
            f"{printable(path)}: refused: {printable(error, 80)}; only arrays and plain values are read"
        ) from None
    return value.item() if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 0 else value
