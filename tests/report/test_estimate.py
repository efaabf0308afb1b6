"""What `--dry-run` says."""

from rich.console import Console

from normwise.lab.estimate import estimate
from normwise.lab.settings import CompareSettings
from normwise.report.estimate import render_estimate


def test_a_grid_of_which_nothing_makes_sense_says_why() -> None:
    settings = CompareSettings(norms="batch_norm_tokens", placements="pre_norm", seeds=1)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(render_estimate(estimate(settings)))
    first, second = shown.get().splitlines()
    assert first == "Runs: 0. There is nothing to train."
    assert second.startswith("Skipped batch_norm_tokens: a token would be normalized")
