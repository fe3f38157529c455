"""`python -m robocache_ros` is `robocache`."""

from robocache_ros.cli import main

main()
