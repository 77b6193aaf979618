"""Benchmarks, one file a question; each prints one JSON document, `python -m bench` runs all."""
