"""A small Transformer to try norms and placements in."""
