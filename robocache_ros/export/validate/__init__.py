"""Validation of datasets: reads every file of a dataset and reports what its readers would trip over."""
