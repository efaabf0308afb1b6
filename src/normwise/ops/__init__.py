"""Norms as functions of tensors."""
