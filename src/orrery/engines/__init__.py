"""The engines: virtual time on a modelled world, and real processes on sockets."""
