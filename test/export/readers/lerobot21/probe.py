"""Runs under lerobot 0.3.3, which reads LeRobot v2.1, what runs under the present one: the interface is the same."""

import runpy
import sys
from pathlib import Path

folder = Path(__file__).parents[1] / "lerobot"
sys.path.insert(0, str(folder))
runpy.run_path(str(folder / "probe.py"), run_name="__main__")
