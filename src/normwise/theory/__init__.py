"""Numbers in, numbers out: what papers prescribe and what follows from an initialisation."""
