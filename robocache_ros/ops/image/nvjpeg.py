"""JPEG on the GPU, through torchvision's nvJPEG.

Its bits are not libjpeg's: it rounds the inverse transform and the upsampling of colours differently, by a few counts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need


@cache
def _decoder() -> Any:
    return need("torchvision.io", "nvjpeg").decode_jpeg


def require_jpeg() -> None:
    """Raise RoboCacheError if torchvision is not installed."""
    _decoder()


def decode_jpeg(data: NDArray[np.uint8], device: torch.device) -> Tensor:
    """(H, W, C) uint8 of a file's (nbytes,) uint8, C 3 or 1, contiguous; raises RoboCacheError for a bad file."""
    try:
        planes: Tensor = _decoder()(torch.from_numpy(data.copy()), device=device)
    except torch.cuda.OutOfMemoryError:
        raise  # the file may be good
    except RuntimeError as error:
        raise RoboCacheError(f"data: nvJPEG cannot read this jpeg: {str(error).splitlines()[0]}") from None
    return planes.permute(1, 2, 0).contiguous()
