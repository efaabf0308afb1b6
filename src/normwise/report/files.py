"""Files that a report writes: whole or not at all."""

from pathlib import Path

from normwise.errors import StoreError
from normwise.files import write_whole


def save(path: Path, content: bytes) -> None:
    """Writes a file, and the folder it lies in.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise StoreError(
            f"The report must be written somewhere. {path} cannot be: {error.strerror}. "
            f"Name another place."
        ) from error
