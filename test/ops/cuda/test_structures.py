"""The arguments of launches: Python packs each structure as C++ lays it out."""

import ctypes
from ctypes import Structure, c_char, c_double, c_int, c_longlong, c_void_p

import pytest

from robocache_ros.ops import tick
from robocache_ros.ops.cuda.kernels import fields_of, filled_packer, packer
from robocache_ros.ops.image import cuda as image
from robocache_ros.ops.resample import cuda as resample
from robocache_ros.ops.voxel import cuda as voxel

STRUCTURES = [
    *(("resample/arguments.cuh", f"ResampleArguments<{n}>", resample.resample_arguments(n)) for n in (1, 3, 4)),
    ("resample/arguments.cuh", "BlendArguments", resample.BlendArguments),
    *(
        ("image/arguments.cuh", kind.__name__, kind)
        for kind in (image.ConvertArguments, image.AreaImageArguments, image.AreaArguments, image.NormalizeArguments)
    ),
    *(
        ("voxel/arguments.cuh", kind.__name__, kind)
        for kind in (
            voxel.ClearArguments,
            voxel.PlaceArguments,
            voxel.LocateArguments,
            voxel.SortArguments,
            voxel.BinArguments,
            voxel.ClaimArguments,
            voxel.WriteArguments,
        )
    ),
    *(
        ("tick/row.cuh", kind.__name__, kind)
        for kind in (tick.RowArguments, tick.RowTarget, tick.RowTask, tick.WindowTask)
    ),
    *(("tick/tasks.cuh", kind.__name__, kind) for kind in (tick.ImageTask, tick.CloudTask)),
    ("tick/tasks.cuh", "ImageArguments", tick.TaskArguments),
    ("tick/tasks.cuh", "CloudArguments", tick.TaskArguments),
]


@pytest.mark.parametrize(("header", "name", "structure"), STRUCTURES, ids=[name for _, name, _ in STRUCTURES])
def test_sizes_and_offsets_are_those_of_the_header(host_library, header, name, structure):
    fields = list(fields_of(structure))
    places = "".join(
        f"  *out++ = offsetof(Checked, {field.path}); *out++ = sizeof(((Checked*)0)->{field.path});\n"
        for field in fields
    )
    library = host_library(
        f"""
        #include <cstddef>
        #include "{header}"
        using namespace robocache;
        typedef {name} Checked;
        extern "C" void measure(long long* out) {{
          *out++ = sizeof(Checked);
        {places}
        }}
        """
    )
    found = (c_longlong * (1 + 2 * len(fields)))()
    library.measure(found)
    assert found[0] == ctypes.sizeof(structure) == packer(structure).size
    sizes = {"P": 8, "l": 8, "q": 8, "d": 8, "f": 4, "i": 4, "I": 4}
    wanted = {field.path: (field.offset, sizes[field.letter]) for field in fields}
    assert {field.path: tuple(found[1 + 2 * i : 3 + 2 * i]) for i, field in enumerate(fields)} == wanted


class Inner(Structure):
    _fields_ = (("letter", c_char), ("number", c_double))


class Outer(Structure):
    _fields_ = (("first", c_int), ("inner", Inner * 2), ("pointer", c_void_p), ("last", c_int))


def test_a_packer_puts_each_number_where_the_structure_has_it():
    outer = Outer.from_buffer_copy(packer(Outer).pack(1, b"a", 2.5, b"b", 3.5, 4, 5))
    assert (outer.first, outer.pointer, outer.last) == (1, 4, 5)
    assert [(inner.letter, inner.number) for inner in outer.inner] == [(b"a", 2.5), (b"b", 3.5)]


def test_a_filled_packer_puts_given_numbers_between_the_bytes_of_its_template():
    template = Outer(7, ((b"c", 8.5), (b"d", 9.5)), 10, 11)
    layout, between = filled_packer(template, {"first", "number", "last"})
    arguments = (1, between[0], 2.5, between[1], 3.5, between[2], 5, between[3])
    packed = Outer.from_buffer_copy(layout.pack(*arguments))
    assert (packed.first, packed.pointer, packed.last) == (1, 10, 5)
    assert [(inner.letter, inner.number) for inner in packed.inner] == [(b"c", 2.5), (b"d", 3.5)]
