"""Import it before lerobot: nothing is looked for on the Hub, and torchvision goes with a CPU-only torch."""

import os

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import torch

# torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
