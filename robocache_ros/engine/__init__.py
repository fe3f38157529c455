"""The fusion engine: samples in, frames on the tick grid out."""

from robocache_ros.engine.engine import FusionEngine, Outcome
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.ingest import Ingest

__all__ = ["Frames", "FusionEngine", "Ingest", "Outcome"]
