"""The checks: one file each, from a run to readings."""
