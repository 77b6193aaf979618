"""The local web page: it shows what the lab has, and starts what the command line can do.

It reads the catalogue, the ledger and the run folders, and has no logic of its own: work is done
by child processes of the command line. It answers on the loopback only, to those who have the
token; see `guard` for what is checked on every route.
"""

from __future__ import annotations

from orrery.page.server import Address, Server

__all__ = ["Address", "Server"]
