"""The command line: `orrery`. Each command is one module, loaded when it is asked for."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The program `orrery`: do what the arguments say and exit with the contract's code."""
    from orrery.cli.app import run_command

    sys.exit(run_command(sys.argv[1:]))
