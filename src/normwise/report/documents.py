"""Which document a result becomes: a row for each kind of result."""

from normwise.lab.comparison import Comparison
from normwise.probe.diagnosis import Diagnosis
from normwise.report import comparison, diagnosis
from normwise.report.document import Document

Result = Comparison | Diagnosis


def document_of(result: Result) -> Document:
    """The document of a comparison or a diagnosis.

    Raises:
        TypeError: a result of another kind.
    """
    if isinstance(result, Comparison):
        return comparison.document(result)
    if isinstance(result, Diagnosis):
        return diagnosis.document(result)
    raise TypeError(
        f"A report needs a comparison or a diagnosis. It got a {type(result).__name__}."
    )
