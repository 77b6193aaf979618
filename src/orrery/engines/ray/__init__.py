"""The Ray engine: the same parts and worlds, with nodes as actors of a Ray cluster.

**Who does what.** Ray places the actors, starts their processes, tells of their death and ends
them. What nodes say to each other does not go through Ray: an actor hosts the same event kernel,
post office and sockets as a process of the processes engine, and its address is handed round when
it is ready. So a message is a frame of our own codec on a TCP connection that opened with an HMAC
challenge, an array goes straight into its memory on the bulk lane, and nothing that a part says is
ever pickled. A call of an actor's method takes about a millisecond; a frame takes a tenth of it.

**Time.** `now` is real seconds since the common start. Actors on the parent's machine read the
same monotonic clock; others set theirs by the parent's when they open their line, to within half
a round trip.

**Faults.** `Crash` and `SpotReclaim` end the actor at once (SIGKILL where the parent can reach the
process, and `ray.kill` without a restart everywhere); a restart is a new actor, in a new process,
on the same Ray node and disk folder. `Pause` and `Slow` are SIGSTOP and SIGCONT, which need an
actor on the parent's machine; elsewhere they are refused by name. Faults of traffic are the
sender's shim, those of clocks, disks and arithmetic are played in the actor, all as on processes.

**The end.** Whatever happens, all actors of a run are ended and its folders removed. A local Ray
is started on the first need, binds the loopback with a token of its own, keeps its files in a
folder of its own, serves every later run of the process and goes with it. A cluster that was there
before is left as it was.
"""

from orrery.engines.ray.cluster import shutdown
from orrery.engines.ray.engine import RayEngine

__all__ = ["RayEngine", "shutdown"]
