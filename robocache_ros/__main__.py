"""`python -m robocache_ros` is `robocache`."""

import sys

from robocache_ros.programs import robocache

sys.exit(robocache())
