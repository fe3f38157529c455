"""RLDS datasets in the files of TFDS, as in Open X-Embodiment."""
