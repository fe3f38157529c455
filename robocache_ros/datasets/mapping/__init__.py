"""Episodes of different datasets in one layout: columns, cameras and the size of images."""
