"""The frames of a recording, from its /tf and /tf_static."""
