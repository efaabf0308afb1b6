"""Every exception and warning a user can meet. Each is also the standard one of its kind."""

from collections.abc import Iterable
from difflib import get_close_matches


class NormwiseError(Exception):
    """Base of all errors that are the user's to mend; the command line prints it as one line."""


class ShapeError(NormwiseError, ValueError):
    """Tensors whose shapes or dtypes do not fit each other."""


class SettingError(NormwiseError, ValueError):
    """A setting outside the values it may take."""


class PairingWarning(UserWarning):
    """A placement without what belongs to it: it will run, and not be what its papers describe."""


class DataError(NormwiseError, ValueError):
    """Text that cannot be trained on."""


class StoreError(NormwiseError, RuntimeError):
    """A run folder that does not belong to this comparison, or cannot be written."""


class DeviceUnavailable(NormwiseError, RuntimeError):
    """A device or a precision that this machine does not offer."""


class AnatomyUnknown(NormwiseError, ValueError):
    """A model in which the residual stream was not found, or does not add up."""


class UnhealthySignal(NormwiseError, AssertionError):
    """A model whose signal a check does not find healthy."""


class BenchFailed(NormwiseError, RuntimeError):
    """A measuring process that ended before its time."""


class BackendUnavailable(NormwiseError, RuntimeError):
    """A backend that was asked for by name and cannot run a call."""


class MissingExtra(NormwiseError, ImportError):
    """A package that an extra brings is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed. "
            f"Run: pip install 'normwise[{extra}]'"
        )


class UnknownName(NormwiseError, ValueError):
    """A name that is in no row of the table it was looked up in."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        plain = name.strip().lower().replace("-", "_")
        nearest = get_close_matches(plain, names, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        super().__init__(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
