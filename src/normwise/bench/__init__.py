"""Time and error of the norms beside their peers."""
