"""Groups and attributes of robomimic datasets, and those that this package adds."""

from __future__ import annotations

FILE = "dataset.hdf5"  # in a folder
DATA = "data"  # the group of the demonstrations
OWN = "robocache"  # the group of what this package adds, in the file and in each demonstration
PROVENANCE = f"{OWN}/provenance"  # a text
GROUPS = {"observation": "obs", "action": "action_dict"}  # of the streams of a role, as recorded; `actions` are scaled
