"""The problems of this room: the questions that operators ask of their systems."""
