"""The tests. A package, so that `python -m test.fuzz` does not find the package `test` of Python itself."""
