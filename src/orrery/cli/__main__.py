"""`python -m orrery.cli`: the same as the program `orrery`."""

from orrery.cli import main

# A worker process imports this file too, under another name, and must not run the program again.
if __name__ == "__main__":
    main()
