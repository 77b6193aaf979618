"""The rooms of the published systems; each room's door gives its problems, classics and systems."""
