"""Arrays of datasets in the layout of Diffusion Policy's ReplayBuffer."""

from __future__ import annotations

FOLDER = "replay_buffer.zarr"
ACTION, REWARD = "action", "reward"  # arrays in addition to those of the observations, which have the names of streams
MAX_CHUNK_BYTES, MAX_CHUNKS = 256 << 20, 10_000_000
CODECS = ("", "zstd", "zlib", "gzip")  # of chunks that are read
