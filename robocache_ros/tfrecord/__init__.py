"""TFRecord files and tf.train.Example records, read and written without TensorFlow."""
