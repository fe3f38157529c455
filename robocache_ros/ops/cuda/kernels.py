"""CUDA kernels for Python: compiled on first use, kept on disk, and launched with little overhead."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import struct
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.resources import resource


def alignment_table() -> str:
    """The text of resample/alignment_table.cuh: what kernels/resample/alignment.cuh makes types of."""
    found = [(name, alignment(name)) for name in NAMES]
    lines = ["#pragma once"]
    lines += [f'#include "resample/alignments/{name}.cuh"' for name, each in found if each.blends]
    entries = (f"BLENDS({n}, {each.group})" if each.blends else f"COPIES({n}, {each.selects})" for n, each in found)
    lines += [f"#define ALIGNMENTS(BLENDS, COPIES) {' '.join(entries)}"]
    return "\n".join([*lines, ""])


# The text of each generated header, by the path that kernels include it by.
GENERATED: Mapping[str, Callable[[], str]] = {"resample/alignment_table.cuh": alignment_table}


# Compiles kernels/*.cu with NVRTC: no -ftz=true, no fused multiply-add, and every header in the cache key.

# CuPy's own compile path adds -ftz=true, which flushes subnormals, so NVRTC is called directly.
LOWEST_CAPABILITY = (8, 0)  # samples are staged by cp.async
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
# A name in quotes, or a macro that is defined as one when the kernel is compiled.
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|(\w+))', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A kernel file and every header that it includes, at any depth, in the order met."""

    file: str
    text: str
    headers: tuple[tuple[str, str], ...]

    def key(self, options: tuple[str, ...], version: tuple[int, int]) -> str:
        """The key of the compiled module: a digest of everything that it is compiled from."""
        digest = hashlib.sha256()
        for part in (repr(version), *options, self.file, self.text, *(text for pair in self.headers for text in pair)):
            digest.update(f"{len(part.encode())}:{part}".encode())
        return digest.hexdigest()


@cache
def load_source(file: str, defines: tuple[str, ...] = ()) -> Source:
    """Read kernels/`file` with its headers, generated ones included.

    Args:
        file: such as `voxel/place.cu`.
        defines: those that it is compiled with; an `#include MACRO` reads the header that MACRO is defined as.

    Raises:
        RoboCacheError: the file, or a header it includes, does not exist, or a macro that it includes is not defined.
    """
    text = resource("kernels", file).read_text()
    headers: dict[str, str] = {}
    waiting = _included(file, text, defines)
    while waiting:
        name = waiting.pop(0)
        if name not in headers:
            headers[name] = GENERATED[name]() if name in GENERATED else resource("kernels", name).read_text()
            waiting += _included(name, headers[name], defines)
    return Source(file, text, tuple(headers.items()))


def _included(file: str, text: str, defines: tuple[str, ...]) -> list[str]:
    """The names of the headers that a file includes itself."""
    macros = dict(define.split("=", 1) for define in defines if "=" in define)
    names = []
    for name, macro in _INCLUDE.findall(text):
        if macro and macro not in macros:
            raise RoboCacheError(f'kernels/{file}: includes {macro}; compile it with the define {macro}="header.cuh"')
        names.append(name or macros[macro].strip('"'))
    return names


def compile_options(architecture: str, defines: tuple[str, ...] = ()) -> tuple[str, ...]:
    """NVRTC's options for an architecture such as `sm_90` and definitions such as `THREADS=256`."""
    return (f"--gpu-architecture={architecture}", *OPTIONS, *(f"-D{define}" for define in defines))


def compile_cubin(nvrtc: Any, source: Source, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Compile to machine code; returns the cubin and the compiler's log, which is empty if there are no warnings.

    Args:
        nvrtc: the module `cupy.cuda.nvrtc`, or an object with its functions.
        source: from `load_source`.
        options: from `compile_options`.

    Raises:
        RoboCacheError: it does not compile; the message contains the log.
    """
    program = nvrtc.createProgram(
        source.text,
        source.file,
        [text.encode() for _, text in source.headers],
        [name.encode() for name, _ in source.headers],
    )
    try:
        try:
            nvrtc.compileProgram(program, options)
        except Exception as error:
            log = nvrtc.getProgramLog(program)
            raise RoboCacheError(f"kernels/{source.file}: {error} with {' '.join(options)}\n{log}") from error
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program).strip()
    finally:
        nvrtc.destroyProgram(program)


_cache_directory: Path | None = None
_cache_enabled = True


def enable_jit_cache(directory: str | os.PathLike[str] | None = None, *, enabled: bool = True) -> Path | None:
    """Choose where compiled kernels are cached between runs. By default they are.

    Args:
        directory: created when needed. None: $ROBOCACHE_CACHE_DIR, else $XDG_CACHE_HOME/robocache_ros, else
            ~/.cache/robocache_ros.
        enabled: False stores nothing on disk; every process compiles its own kernels.

    Returns:
        The directory, or None if nothing is cached.

    Raises:
        RoboCacheError: `directory` is given and cannot be created or written to.
    """
    global _cache_directory, _cache_enabled
    if directory is not None:
        chosen = Path(directory).expanduser().absolute()
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=chosen):
                pass
        except OSError as error:
            raise RoboCacheError(f"directory: {chosen} cannot be written to ({error}); choose another") from error
        _cache_directory = chosen
    _cache_enabled = enabled
    return cache_directory()


def cache_directory() -> Path | None:
    """The directory of cached kernels; None if nothing is cached."""
    if not _cache_enabled:
        return None
    if _cache_directory is not None:
        return _cache_directory
    named = os.environ.get("ROBOCACHE_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robocache_ros"


def load_cubin(key: str) -> bytes | None:
    """The module stored under `key`; None if there is none or its bytes are damaged."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        entry = (directory / f"{key}.cubin").read_bytes()
    except OSError:
        return None
    digest, module = entry[:32], entry[32:]
    return module if module and hashlib.sha256(module).digest() == digest else None


def store_cubin(key: str, module: bytes) -> None:
    """Write a module atomically. If that fails, the next process compiles it again."""
    directory = cache_directory()
    if directory is None:
        return
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(module).digest() + module)
            os.replace(temporary, directory / f"{key}.cubin")
        except OSError:
            os.unlink(temporary)


# The arguments of a launch as a named structure: `ctypes` in Python, a struct of the same fields in a kernel's header.
#
# Setting the fields of a ctypes structure one by one takes four times as long as packing all values at once. A launch
# therefore packs its values with a `struct.Struct` that is built from the structure's fields.


class Field(NamedTuple):
    """A number of a structure."""

    path: str  # as C++ writes it: job.pitch, streams[2].limits.max_gap
    name: str  # the last part of the path, without an index
    offset: int  # bytes
    letter: str  # of `struct`


def fields_of(structure: Any, path: str = "", offset: int = 0) -> Iterator[Field]:
    """Every number of a structure, with those of nested structures and arrays, in memory order."""
    for name, kind in structure._fields_:
        yield from _numbers(kind, path + name, name, offset + getattr(structure, name).offset)


def _numbers(kind: Any, path: str, name: str, offset: int) -> Iterator[Field]:
    if issubclass(kind, ctypes.Structure):
        yield from fields_of(kind, f"{path}.", offset)
    elif issubclass(kind, ctypes.Array):
        size = ctypes.sizeof(kind._type_)
        for index in range(kind._length_):
            yield from _numbers(kind._type_, f"{path}[{index}]", name, offset + index * size)
    else:
        yield Field(path, name, offset, kind._type_)


@cache
def packer(structure: type[ctypes.Structure]) -> struct.Struct:
    """The `struct.Struct` that packs all numbers of a structure, in the order of `fields_of`."""
    return _packer(fields_of(structure), ctypes.sizeof(structure))


def _packer(pieces: Iterator[Field], size: int) -> struct.Struct:
    letters, end = "@", 0
    for piece in pieces:
        letters += f"{piece.offset - end}x{piece.letter}"
        end = piece.offset + struct.calcsize(piece.letter)
    return struct.Struct(f"{letters}{size - end}x")


def filled_packer(template: ctypes.Structure, given: Collection[str]) -> tuple[struct.Struct, tuple[bytes, ...]]:
    """The packer of the fields whose names are `given` and of the bytes between them, which are the template's.

    Returns:
        The packer, which takes the given numbers and the bytes between them in memory order; and these bytes.
    """
    memory, size = bytes(template), ctypes.sizeof(template)
    pieces: list[Field] = []
    between: list[bytes] = []
    end = 0
    for field in (*(f for f in fields_of(type(template)) if f.name in given), Field("", "", size, "")):
        if field.offset > end:
            between.append(memory[end : field.offset])
            pieces.append(Field("", "", end, f"{field.offset - end}s"))
        if field.letter:
            pieces.append(field)
            end = field.offset + struct.calcsize(field.letter)
    return _packer(iter(pieces), size), tuple(between)


_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
_PARAMETER_BUFFER, _PARAMETER_BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_*

_lock = threading.Lock()
_modules: dict[tuple[str, tuple[str, ...], int], Any] = {}
_kernels: dict[tuple[str, str, int, tuple[str, ...]], Kernel] = {}


class _Arguments(threading.local):
    """The packed arguments of one thread and the list by which cuLaunchKernel finds them; every launch reuses both."""

    def __init__(self, size: int) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _PARAMETER_BUFFER, ctypes.addressof(self.buffer), _PARAMETER_BUFFER_SIZE, ctypes.addressof(self._size), 0
        )
        self.address = ctypes.addressof(self._extra)


class Kernel:
    """A compiled `__global__` function on one device."""

    def __init__(self, function: Any, driver: Any, layout: struct.Struct, device: int) -> None:
        self._keep = function  # keeps the module loaded
        self.pointer: int = function.ptr
        self._driver_launch = driver.launchKernel
        self._pack = layout.pack_into
        self._arguments = _Arguments(layout.size)
        self.device = device

    def launch(self, grid: tuple[int, int, int], block: int, shared: int, *arguments: int | float | bytes) -> None:
        """Launch on the current stream of the kernel's device, asynchronously.

        Args:
            grid: blocks in x, y, z, each at least 1.
            block: threads in a block.
            shared: bytes of dynamic shared memory.
            arguments: what the layout packs; pointers as the int of `data_ptr()`.
        """
        if _current_device() != self.device:
            with torch.cuda.device(self.device):
                return self.launch(grid, block, shared, *arguments)
        stream = raw_stream(self.device)
        self._driver_launch(self.pointer, *grid, block, 1, 1, shared, stream, 0, self.packed(*arguments))
        return None

    def packed(self, *arguments: int | float | bytes) -> int:
        """Address of the arguments in the form of cuLaunchKernel's `extra`, valid until this thread's next launch."""
        mine = self._arguments
        self._pack(mine.buffer, 0, *arguments)
        return mine.address


def kernel(
    file: str, name: str, layout: struct.Struct, device: int, defines: tuple[str, ...] = (), shared_limit: int = 0
) -> Kernel:
    """The kernel `name` of kernels/`file`, compiled for a device on first use and memoized.

    Args:
        file: such as `resample/resample.cu`. It and its headers include only headers in kernels/.
        name: of an `extern "C" __global__` function.
        layout: packs its one parameter, a structure passed by value; see `structures.packer`.
        device: index of the CUDA device.
        defines: such as `("THREADS=256",)`; each set compiles once.
        shared_limit: bytes of dynamic shared memory that launches may request, if more than 48 KiB.

    Raises:
        RoboCacheError: CuPy is missing, or the kernel does not compile for the device.
    """
    key = (file, name, device, defines)
    found = _kernels.get(key)
    if found is None:
        with _lock:
            found = _kernels.get(key) or _build(file, name, layout, device, defines, shared_limit)
            _kernels[key] = found
    return found


def _build(
    file: str, name: str, layout: struct.Struct, device: int, defines: tuple[str, ...], shared_limit: int
) -> Kernel:
    driver = import_cupy_cuda().driver
    module = _modules.get((file, defines, device))
    with torch.cuda.device(device):
        if module is None:
            module = _modules[file, defines, device] = _load(file, defines, device)
        function = module.get_function(name)
        if shared_limit > 48 * 1024:
            driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_limit)
    return Kernel(function, driver, layout, device)


def _load(file: str, defines: tuple[str, ...], device: int) -> Any:
    cuda = import_cupy_cuda()
    source = load_source(file, defines)
    capability = torch.cuda.get_device_capability(device)
    if capability < LOWEST_CAPABILITY:
        found, lowest = (".".join(map(str, numbers)) for numbers in (capability, LOWEST_CAPABILITY))
        raise RoboCacheError(
            f"cuda:{device}, {torch.cuda.get_device_name(device)}, has compute capability {found}; the kernels need "
            f"{lowest} or newer. Choose the device cpu"
        )
    options = compile_options("sm_{}{}".format(*capability), defines)
    key = source.key(options, cuda.nvrtc.getVersion())
    stored = load_cubin(key)
    if stored is not None:
        module = cuda.function.Module()
        try:
            module.load(stored)
            return module
        except RuntimeError:
            pass  # a module that the driver refuses is rebuilt, like a damaged one
    cubin, _ = compile_cubin(cuda.nvrtc, source, options)
    store_cubin(key, cubin)
    module = cuda.function.Module()
    module.load(cubin)
    return module


def import_cupy_cuda() -> Any:
    """`cupy.cuda`; raises RoboCacheError, with the command that installs it, if it is missing."""
    try:
        return import_module("cupy.cuda")
    except ImportError as error:
        version = (torch.version.cuda or "13").split(".")[0]
        raise RoboCacheError(
            f"CUDA tensors: CuPy is not installed ({error}); run pip install cupy-cuda{version}x"
        ) from error


def is_current(device: int) -> bool:
    """Whether a device is torch's current one."""
    return bool(_current_device() == device)


def raw_stream(device: int) -> int:
    """The handle of torch's current stream, without the wrapper that `torch.cuda.current_stream` creates."""
    pointer: int = _raw_stream(device)
    return pointer


def _wrapped_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


# Without the check whether CUDA is initialised: kernels are launched for tensors on a device.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", _wrapped_stream)


# Programmatic dependent launch: a kernel starts while the previous one on the stream still runs.
#
# The kernel waits (griddepcontrol.wait) before it accesses what the previous one writes. This needs compute capability
# 9.0; on older GPUs the launch is an ordinary one, with the same result.

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Launch(threading.local):
    """One thread's launch configuration, reused from launch to launch."""

    def __init__(self) -> None:
        self.attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, b"", 1, b"")
        self.config = _Config()
        self.config.attributes = ctypes.pointer(self.attribute)
        self.config.count = 1
        self.reference = ctypes.byref(self.config)


_launch = _Launch()


def launch_dependent(
    kernel: Kernel, grid: tuple[int, int, int], block: int, shared: int, *arguments: int | float | bytes
) -> None:
    """Launch like `Kernel.launch`; the kernel may start before the previous one on the stream has ended."""
    device = kernel.device
    if not _supported(device) or torch.cuda.current_device() != device:
        return kernel.launch(grid, block, shared, *arguments)
    config = _launch.config
    config.grid[:] = grid
    config.block[:] = (block, 1, 1)
    config.shared = shared
    config.stream = raw_stream(device)
    status = _driver().cuLaunchKernelEx(_launch.reference, kernel.pointer, None, kernel.packed(*arguments))
    if status:
        raise RuntimeError(f"cuLaunchKernelEx: CUDA error {status}")
    return None


def launch_captured_dependent(
    kernel: Kernel, grid: tuple[int, int, int], block: int, shared: int, *arguments: int | float | bytes
) -> None:
    """`launch_dependent` while a CUDA graph is captured; else `Kernel.launch`, whose call takes less time."""
    launch = launch_dependent if _capturing() else Kernel.launch
    launch(kernel, grid, block, shared, *arguments)


_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


@cache
def _supported(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = (ctypes.c_void_p,) * 4
    return library


_ANY_DIRECTION = 4  # cudaMemcpyDefault: the driver derives the direction from the addresses


def pinned(nbytes: int) -> Tensor:
    """(nbytes,) uint8 in pinned host memory, which copies read and kernels write by its address."""
    return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)


# Streams by their handles: torch.cuda.current_stream makes an object for each call.


def copy_async(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy bytes between addresses, in the order of a stream; asynchronous between pinned and GPU memory only."""
    _runtime().memcpyAsync(target, source, nbytes, _ANY_DIRECTION, stream)


def record_event(event: Any, stream: int) -> None:
    """Record an event of `new_event` on a stream of its device."""
    _runtime().eventRecord(event.cuda_event, stream)


def wait_event(stream: int, event: Any) -> None:
    """Make later work on a stream wait for an event of `new_event`; the host does not wait."""
    _runtime().streamWaitEvent(stream, event.cuda_event)


def new_event(device: torch.device) -> Any:
    """A torch.cuda.Event without timing, recorded once: torch creates it at that moment."""
    event = _event()
    with torch.cuda.device(device):
        event.record()
    return event


def new_stream(device: torch.device) -> Any:
    """A torch.cuda.Stream."""
    return _stream(device)


_event: Any = torch.cuda.Event
_stream: Any = torch.cuda.Stream


@cache
def _runtime() -> Any:
    import_cupy_cuda()
    return import_module("cupy.cuda.runtime")


# The C++ guards by which torch.compile decides whether to reuse compiled code. For ten tensors they take half a
# microsecond; the comparison in Python takes four.
_Guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def like(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A function that tells whether its arguments are tensors like these. It keeps no reference to these."""
    try:
        sizes, strides = ([list(get(tensor)) for tensor in tensors] for get in (Tensor.size, Tensor.stride))
        guards = _Guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guards.check
        if check(*tensors):  # not of one tensor given twice, or of a gradient while gradients are disabled
            return check
    except (AttributeError, TypeError):  # this version of torch has no such guards, or others
        pass
    wanted = [_described(tensor) for tensor in tensors]
    return lambda *others: [_described(other) for other in others] == wanted


def _described(tensor: Any) -> tuple[Any, ...] | None:
    if not isinstance(tensor, Tensor):
        return None
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad
