"""Measurements of scalespaces, run from a checkout: ``python -m benchmarks --help``."""
