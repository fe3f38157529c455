"""Storage of images: video files, encoded images, arrays."""
