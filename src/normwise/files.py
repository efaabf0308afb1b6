"""Files that are there whole or not at all, and values as JSON has them."""

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from normwise.errors import StoreError


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes beside the target, then renames: the file is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a result as JSON, and the folder it lies in.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
    """
    text = json.dumps(content, indent=1, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise StoreError(
            f"The result must be written somewhere. {path} cannot be: {error.strerror}. "
            f"Name another place with out."
        ) from error


def plain(value: Any) -> Any:
    """A value of mappings, lists and numbers as JSON has it: not-a-number becomes null, and an
    infinity its name.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
