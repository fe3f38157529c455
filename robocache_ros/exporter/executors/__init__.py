"""Executors of the tasks of an export: processes of this machine, or a cluster."""
