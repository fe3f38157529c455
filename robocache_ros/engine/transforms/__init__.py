"""The tree of transforms: poses of frames in other frames, at any time."""
