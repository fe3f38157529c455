"""Readers of datasets, one file per format. A reader is an `episode_source.EpisodeSource`."""
