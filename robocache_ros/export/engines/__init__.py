"""Engines that run the tasks of an export: processes of this machine, or a cluster."""
