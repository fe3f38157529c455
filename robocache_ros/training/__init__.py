"""Training policies on any dataset of `robocache_ros.datasets`: data, policies, the loop, checkpoints, inference."""
