"""Every kernel of the vector operations compiles, without a GPU and without a warning, for every architecture."""

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.compiler import compile_cubin, compile_options, load_source

ARCHITECTURES = ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120"]
SIZES = ("THREADS=256", "IN_FLIGHT=2")
KINDS = (
    "KINDS=CASE(0,LINEAR,bf16,bf16,8,8,8,8,0) CASE(1,LINEAR,bf16,bf16,2,2,8,8,1) CASE(2,SLERP,float,f16,1,4,1,4,0) "
    "CASE(3,ANGLE,f16,float,8,8,4,8,1) CASE(4,HOLD,uint8,uint8,16,16,16,16,0) CASE(5,NEAREST,uint8,bf16,1,1,8,8,1)"
)
VARIANTS = [
    *(("resample.cu", (KINDS, "STREAMS=7", f"TIME={time}", *SIZES)) for time in ("int64", "double", "float")),
    *(("blend.cu", (f"KIND={kind}", *SIZES)) for kind in ("SLERP,f16,f16,4,4,4,4,0", "ANGLE,bf16,bf16,2,2,8,8,0")),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_compiles_without_a_warning(nvrtc, architecture):
    for file, defines in VARIANTS:
        cubin, log = compile_cubin(nvrtc, load_source(file), compile_options(architecture, defines))
        assert cubin.startswith(b"\x7fELF")
        assert log == "", (file, defines)


def test_a_mistake_is_reported_with_the_compilers_words(nvrtc):
    with pytest.raises(RoboCacheError, match=r"kernels/blend.cu: NVRTC_ERROR_COMPILATION(.|\n)*nonsense"):
        compile_cubin(nvrtc, load_source("blend.cu"), compile_options("sm_90", ("KIND=nonsense", *SIZES)))


def test_subnormals_and_single_roundings_are_kept():
    options = compile_options("sm_90")
    assert "--ftz=false" in options
    assert "--fmad=false" in options
    assert not any("fast" in option for option in options)


def test_no_multiplication_is_fused_with_an_addition(nvrtc):
    """In PTX, where operations still have their names; those of division and square root lie in single instructions."""
    program = nvrtc.createProgram(
        load_source("blend.cu").text,
        "blend.cu",
        [text.encode() for _, text in load_source("blend.cu").headers],
        [name.encode() for name, _ in load_source("blend.cu").headers],
    )
    nvrtc.compileProgram(program, compile_options("sm_90", ("KIND=SLERP,f16,f16,4,4,4,4,0", *SIZES)))
    ptx = nvrtc.getPTX(program).decode()
    nvrtc.destroyProgram(program)
    assert "mul.rn.f32" in ptx
    assert "div.rn.f32" in ptx
    assert "sqrt.rn.f32" in ptx
    assert "fma" not in ptx
    assert ".ftz" not in ptx
