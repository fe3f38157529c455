"""`robocache bench live`: the node under the load of a robot, up to a consumer, each in a separate process."""

from __future__ import annotations
