"""Measuring the signal inside a model."""
