"""Settings with which x264 encodes equal frames to equal bytes."""

from __future__ import annotations

from pathlib import Path


def x264_repeatable() -> dict[str, str]:
    """Return the options of FFmpeg's libx264 that make its output a function of the frames.

    With AVX-512 instructions, x264 (builds 164 and 165) reads past the rows of its macroblock tree if a frame has not a
    multiple of 8 macroblocks in a row, as 224 pixels have. What is there in memory then changes the quantizers, so that
    about one encoding in twenty has other bytes. AVX2 instructions do not, and are as fast.
    """
    try:
        has_avx512 = "avx512" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return {}
    return {"x264-params": "asm=avx2"} if has_avx512 else {}
