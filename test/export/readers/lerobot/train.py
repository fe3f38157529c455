"""Runs under the real LeRobot's own Python: lerobot-train, with its options."""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import torch

# torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.scripts.lerobot_train import main  # noqa: E402

main()
print(json.dumps({"options": sys.argv[1:]}))  # noqa: T201
