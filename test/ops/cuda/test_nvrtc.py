"""Every kernel of the vector operations compiles without a warning; its arguments have the layout of the headers."""

import ctypes
from ctypes import c_longlong

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import tick
from robocache_ros.ops.cuda.kernels import compile_cubin, compile_options, fields_of, load_source, packer
from robocache_ros.ops.image import cuda as image
from robocache_ros.ops.resample import cuda as resample
from robocache_ros.ops.resample.cuda import Key, StreamKey, make_plan
from robocache_ros.ops.voxel import cuda as voxel

F32, F16, BF16, U8 = torch.float32, torch.float16, torch.bfloat16, torch.uint8
STREAMS = (
    StreamKey(100, 32, BF16, "linear", True, False, 0),  # samples staged
    StreamKey(500, 256, BF16, "linear", True, False, 0),  # read where they are
    StreamKey(120, 4, F32, "slerp", False, True, 4),  # unaligned
    StreamKey(3000, 7, F16, "angle", True, False, 0),  # times searched where they are
    StreamKey(120, 5, F32, "angle_deg", True, False, 0),
    StreamKey(20, 16, U8, "hold", False, False, 0),
    StreamKey(20, 3, U8, "nearest", True, True, 1),
    StreamKey(20, 7, F32, "next", True, False, 4),
)


def planned(time, *streams, out=F32):
    return ("resample/resample.cu", make_plan(Key(streams, 64, 50, time, True, out, 0, 132)).defines)


BLEND = ("THREADS=256", "IN_FLIGHT=2")
VARIANTS = [
    planned(torch.int64, *STREAMS),
    planned(torch.float64, StreamKey(120, 14, BF16, "linear", True, False, 0), out=BF16),  # stores across rows
    planned(  # items shifted in their rows, of samples staged, and read where they are
        torch.int64,
        StreamKey(100, 33, BF16, "linear", True, False, 0),
        StreamKey(500, 40, F32, "angle", True, True, 4),
        out=BF16,
    ),
    planned(torch.float32, STREAMS[2], out=F16),
    ("resample/blend.cu", ("TRAITS=Method::slerp,f16,f16,4,4,4,4,16,0", *BLEND)),
    ("resample/blend.cu", ("TRAITS=Method::angle,bf16,bf16,2,2,8,8,16,0", *BLEND)),
    *(("tick/row.cu", (f"WINDOWS={windows}",)) for windows in (0, 1)),
    ("voxel/locate.cu", ("THREADS=256",)),
]


def test_it_compiles_without_a_warning(compile_log, architecture):
    for file, defines in VARIANTS:
        assert compile_log(file, architecture, defines) == "", (file, defines)


@pytest.mark.slow
@pytest.mark.parametrize("family", range(6))
def test_the_images_of_a_tick_compile_without_a_warning(compile_log, family):
    for resize in range(3):
        assert compile_log("tick/image.cu", "sm_90", tick.image_defines(family, resize)) == ""


def test_a_compile_error_is_reported_with_the_log_of_the_compiler(nvrtc):
    with pytest.raises(RoboCacheError, match=r"kernels/resample/blend.cu: NVRTC_ERROR_COMPILATION(.|\n)*nonsense"):
        compile_cubin(nvrtc, load_source("resample/blend.cu"), compile_options("sm_90", ("TRAITS=nonsense", *BLEND)))


def test_a_header_that_a_define_names_is_read_and_is_part_of_the_key():
    headers = [f"voxel/reductions/{name}.cuh" for name in ("occupancy", "count")]
    occupancy, count = (load_source("voxel/place.cu", (f'REDUCTION="{header}"',)) for header in headers)
    assert headers[0] in dict(occupancy.headers)
    assert occupancy.key((), (13, 0)) != count.key((), (13, 0))


def test_a_header_that_no_define_names_is_an_error_that_names_the_define():
    with pytest.raises(RoboCacheError, match=r"kernels/voxel/place.cu: includes REDUCTION; .* define REDUCTION="):
        load_source("voxel/place.cu")


def test_subnormals_are_kept_and_no_multiplication_is_fused_with_an_addition(nvrtc):
    """In PTX, where operations still have their names; division and square root are single instructions."""
    source = load_source("resample/blend.cu")
    names, texts = ([part.encode() for part in parts] for parts in zip(*source.headers, strict=True))
    program = nvrtc.createProgram(source.text, "resample/blend.cu", texts, names)
    nvrtc.compileProgram(program, compile_options("sm_90", ("TRAITS=Method::slerp,f16,f16,4,4,4,4,16,0", *BLEND)))
    ptx = nvrtc.getPTX(program).decode()
    nvrtc.destroyProgram(program)
    assert all(f"{operation}.rn.f32" in ptx for operation in ("mul", "div", "sqrt"))
    assert not any(word in ptx for word in ("fma", ".ftz", ".approx"))


IMAGE = (image.ConvertArguments, image.AreaImageArguments, image.AreaArguments, image.NormalizeArguments)
VOXEL = (voxel.ClearArguments, voxel.PlaceArguments, voxel.LocateArguments, voxel.SortArguments)
VOXEL += (voxel.BinArguments, voxel.ClaimArguments, voxel.WriteArguments)
ROW = (tick.RowArguments, tick.RowTarget, tick.RowTask, tick.WindowTask)
STRUCTURES = [
    *(("resample/arguments.cuh", f"ResampleArguments<{n}>", resample.resample_arguments(n)) for n in (1, 3, 4)),
    ("resample/arguments.cuh", "BlendArguments", resample.BlendArguments),
    *(("image/arguments.cuh", kind.__name__, kind) for kind in IMAGE),
    *(("voxel/arguments.cuh", kind.__name__, kind) for kind in VOXEL),
    *(("tick/row.cuh", kind.__name__, kind) for kind in ROW),
    *(("tick/tasks.cuh", kind.__name__, kind) for kind in (tick.ImageTask, tick.CloudTask)),
    *(("tick/tasks.cuh", name, tick.TaskArguments) for name in ("ImageArguments", "CloudArguments")),
]


@pytest.fixture(scope="module")
def measure(host_library):
    """Measures structures in C++: the size, and the place and size of each field."""
    headers = ["<cstddef>", *dict.fromkeys(f'"{header}"' for header, *_ in STRUCTURES)]
    text = "".join(f"#include {header}\n" for header in headers)
    for number, (_, name, structure) in enumerate(STRUCTURES):
        text += f'extern "C" void measure{number}(long long* out) {{\n  typedef robocache::{name} Checked;\n'
        text += "  *out++ = sizeof(Checked);\n"
        for field in fields_of(structure):
            text += f"  *out++ = offsetof(Checked, {field.path}); *out++ = sizeof(((Checked*)0)->{field.path});\n"
        text += "}\n"
    return host_library(text)


@pytest.mark.parametrize("number", range(len(STRUCTURES)), ids=[name for _, name, _ in STRUCTURES])
def test_sizes_and_offsets_are_those_of_the_header(measure, number):
    structure = STRUCTURES[number][2]
    fields = list(fields_of(structure))
    found = (c_longlong * (1 + 2 * len(fields)))()
    getattr(measure, f"measure{number}")(found)
    assert found[0] == ctypes.sizeof(structure) == packer(structure).size
    sizes = {"P": 8, "l": 8, "q": 8, "d": 8, "f": 4, "i": 4, "I": 4}
    wanted = {field.path: (field.offset, sizes[field.letter]) for field in fields}
    assert {field.path: tuple(found[1 + 2 * i : 3 + 2 * i]) for i, field in enumerate(fields)} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_87", "sm_89", "sm_100"])
def test_each_gpu_that_is_supported_can_be_compiled_for(compile_log, architecture):
    file, defines = VARIANTS[0]
    assert compile_log(file, architecture, defines) == ""
