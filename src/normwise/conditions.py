"""Under what conditions a result was made."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

import torch


def conditions() -> dict[str, str | int]:
    """Machine, versions and time, as plain values."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "normwise": version("normwise"),
    }


def _processor() -> str:
    """The processor's name and its widest vector extension, as torch sees it."""
    name = platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
