"""Compiles kernels/*.cu with NVRTC: no -ftz=true, no fused multiply-add, and every header in the cache key."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.generated import GENERATED
from robocache_ros.resources import resource

# CuPy's own compile path adds -ftz=true, which flushes subnormals, so NVRTC is called directly.
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
