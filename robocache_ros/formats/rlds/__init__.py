"""RLDS: TFDS datasets of TFRecord files, without TensorFlow."""
