"""The shortest job first, by an oracle that knows every length."""

from __future__ import annotations

from orrery.models.requests import Request
from orrery.systems.serve.baselines.estimated_shortest import EstimatedShortest


class OracleShortest(EstimatedShortest):
    """Lets in the request with the least work, and knows how long every answer will be.

    No scheduler can know that: it reads what is hidden from policies, and bounds from below what
    better estimates can gain. Smith (1956): among orders that know all lengths and interrupt
    nobody, the shortest first has the least mean waiting time.

    >>> OracleShortest().expected(Request(0, 0.0, 10, 77))
    77.0
    """

    def expected(self, request: Request) -> float:
        return float(request._output_tokens)


__all__ = ["OracleShortest"]
