"""What a comparison would cost, for a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from normwise.lab.estimate import Estimate
from normwise.lab.progress import spell_seconds
from normwise.report.spelling import short


def render_estimate(estimate: Estimate) -> RenderableType:
    """What `--dry-run` shows."""
    skipped = [f"Skipped {item.what}: {item.reason}." for item in estimate.skipped]
    if estimate.stored == estimate.runs:
        stored = ", all stored already" if estimate.runs else ""
        nothing = f"Runs: {estimate.runs}{stored}. There is nothing to train."
        return Group(*map(Text, [nothing, *skipped]))
    low, high = estimate.parameters
    size = short(low) if low == high else f"{short(low)} to {short(high)}"
    lines = [
        f"Runs: {estimate.runs}, of which {estimate.stored} are stored already",
        f"Tokens to train on: {estimate.tokens:,}",
        f"Parameters: {size}",
        f"Time: about {spell_seconds(estimate.seconds)}, from a few measured steps",
        f"Memory: about {estimate.peak_memory_bytes / 2**20:,.0f} MiB for all workers",
        *skipped,
    ]
    return Group(*map(Text, lines))
