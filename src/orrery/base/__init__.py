"""The ground that everything stands on: errors, units, seeded streams, codec, tables."""
