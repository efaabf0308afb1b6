"""The norms as compiled CPU kernels; `launch` is what the rest of the package calls."""
