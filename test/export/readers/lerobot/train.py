"""Runs under the real LeRobot's own Python: lerobot-train, with its options."""

import json
import sys

import without_cuda  # noqa: F401

# isort: split

from lerobot.scripts.lerobot_train import main

main()
print(json.dumps({"options": sys.argv[1:]}))  # noqa: T201
