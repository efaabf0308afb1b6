"""Norms as modules: thin shells on the functions of `ops`."""
