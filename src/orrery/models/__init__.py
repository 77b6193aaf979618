"""Models of machines that learn and serve: shapes, step times, KV caches, replicas, policies."""
