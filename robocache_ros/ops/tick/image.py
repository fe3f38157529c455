"""The launch of kernels/tick/image.cu, prepared with the checks of `convert_image`."""

from __future__ import annotations

import torch

from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.image.conversion import ImageOptions, checked_conversion
from robocache_ros.ops.image.cuda.convert import convert_arguments
from robocache_ros.ops.image.formats import RESIZE, ImageLayout
from robocache_ros.ops.tick.prepared import NO_TARGET, ImageVariant, Prepared, nowhere
from robocache_ros.ops.tick.tasks import ImageTask, TaskArguments

THREADS = 128  # of a block


def prepare_image(nbytes: int, layout: ImageLayout, options: ImageOptions) -> Prepared:
    """Prepare the launch for an image of `nbytes` bytes; errors are those of `convert_image`."""
    conversion = checked_conversion(nbytes, layout, options)
    out = torch.empty(conversion.shape, dtype=conversion.dtype, device="meta")
    task = packer(ImageTask).pack(*NO_TARGET, *convert_arguments(nowhere(nbytes), conversion, out))
    _, rows, columns = conversion.shape
    variant = ImageVariant(conversion.format.family, RESIZE[conversion.resize], rows * columns)
    return Prepared(conversion.shape, conversion.dtype, variant, task)


def image_defines(family: int, resize: int) -> tuple[str, ...]:
    """The constants that tick/image.cu is compiled with."""
    return (f"FAMILY={family}", f"RESIZE={resize}", f"THREADS={THREADS}")


def launch_image(device: int, task: int, variant: ImageVariant) -> None:
    """Convert one image; `task` is the address of its ImageTask."""
    family, resize, pixels = variant
    defines = image_defines(family, resize)
    launchable = kernel("tick/image.cu", "tick_image", packer(TaskArguments), device, defines)
    launchable.launch((-(-pixels // THREADS), 1, 1), THREADS, 0, task)
