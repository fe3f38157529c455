"""Runs under lerobot 0.3.3, which reads LeRobot v2.1, what runs under the present one: the interface is the same."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "lerobot" / "probe.py"), run_name="__main__")
