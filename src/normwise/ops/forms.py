"""What an op does with a residual beside norming."""

from enum import Enum


class Form(Enum):
    """norm(x); norm(x + residual), with the sum as a second result; residual + norm(x)."""

    PLAIN = 0
    ADD = 1
    OUTPUT = 2
