"""The documentation and the program that builds it: `python -m docs.build`."""
