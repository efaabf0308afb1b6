"""Settings of a model of ours from the command line, and from a file."""

import dataclasses
import json
import typing
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normwise.errors import SettingError, UnknownName
from normwise.model.config import NormAt, TransformerConfig


def own_config(target: str) -> TransformerConfig | None:
    """The settings of a model of ours; None for a target of another kind."""
    if target.startswith("own:"):
        return _config(dict(_pairs(target.removeprefix("own:"))), target)
    if target.endswith(".json") and not target.startswith("hf:"):
        return _config(_fields_in(Path(target)), target)
    return None


def _pairs(text: str) -> Iterator[tuple[str, Any]]:
    """FIELD=VALUE, separated by commas, each value as its field's type."""
    hints = typing.get_type_hints(TransformerConfig)
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise SettingError(f"own: is followed by FIELD=VALUE,... One of them is {part!r}.")
        if name not in hints:
            raise UnknownName("field of TransformerConfig", name, hints)
        yield name, _value(name, hints[name], value)


def _value(name: str, hint: Any, text: str) -> Any:
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    read = READERS.get(kinds[0])
    if read is None:
        raise SettingError(f"{name} is too long for a line. Put the fields into a .json file.")
    try:
        return read(text)
    except (ValueError, KeyError):
        raise SettingError(f"{name} must be {WORDS[kinds[0]]}. It is {text!r}.") from None


TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
READERS: Mapping[Any, Any] = {
    int: int, float: float, str: str, bool: lambda text: TRUTH[text.lower()]
}  # fmt: skip
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}


def _fields_in(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(
            f"The target must exist. {path} cannot be read: {error.strerror}."
        ) from None
    except ValueError:
        raise SettingError(f"The target must be JSON. {path} is not.") from None
    if not isinstance(fields, dict):
        raise SettingError(f"The target must hold the fields of TransformerConfig. {path} does not")
    if "model_type" in fields or "architectures" in fields:
        raise SettingError(
            f"The target must hold the fields of TransformerConfig. {path} is a configuration of "
            f"Hugging Face: write hf:{path}."
        )
    if "norms" in fields:
        fields["norms"] = tuple(NormAt(**rule) for rule in fields["norms"])
    return fields


def _config(fields: dict[str, Any], target: str) -> TransformerConfig:
    """The settings; what they warn about is told when the model is built."""
    known = [one.name for one in dataclasses.fields(TransformerConfig)]
    for name in fields:
        if name not in known:
            raise UnknownName("field of TransformerConfig", name, known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return TransformerConfig(**fields)
        except TypeError as error:
            raise SettingError(
                f"A field of {target} has a value of another kind: {error}"
            ) from None
