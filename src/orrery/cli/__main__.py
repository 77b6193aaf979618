"""`python -m orrery.cli`: the same as the program `orrery`."""

from orrery.cli import main

main()
