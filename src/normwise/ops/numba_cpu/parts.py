"""Compiles the functions that a kernel is made of."""

from numba import njit

_INTERNAL = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # a fifth of the time


def parts(*names):
    """A decorator that compiles functions under names that say of which kernel they are.

    Two kernels have parts of one name and other contents. Loaded from disk into one process, both
    would be bound to whichever came first.
    """
    said = "_".join(getattr(name, "__name__", repr(name)) for name in names)

    def part(**options):
        def compiled(function):
            function.__qualname__ = f"{function.__name__}_{said}"
            return njit(error_model="numpy", **_INTERNAL, **options)(function)

        return compiled

    return part
