"""Placements: where norms and constants sit around x + F(x)."""
