"""Sums and maxima by key."""

import torch

from normwise.probe.tally import Tally


def test_what_is_added_and_what_is_raised() -> None:
    tally = Tally(torch.device("cpu"))
    for values in (torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])):
        tally.add("sum", values)
        tally.rise("most", values)
    tally.send("once", torch.ones(1, 2))
    sums, maxima = tally.collect().values()
    assert sums == {"sum": [4.0, 1.0], "once": [1.0, 1.0]}
    assert maxima == {"most": [3.0, 2.0]}
    sums, maxima = tally.collect().values()
    assert sums == {"sum": [0.0, 0.0]} and maxima == {"most": [0.0, 0.0]}


def test_a_vector_of_another_length_begins_anew() -> None:
    """As of an attention whose heads change with the batch."""
    tally = Tally(torch.device("cpu"))
    for length in (4, 2):
        tally.add("heads", torch.ones(length))
        tally.rise("heads", torch.ones(length))
    sums, maxima = tally.collect().values()
    assert sums == {"heads": [1.0, 1.0]} and maxima == {"heads": [1.0, 1.0]}
