"""Training variants and comparing them."""
