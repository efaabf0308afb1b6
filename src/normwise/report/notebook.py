"""The comparison's public names, with which a result shows itself in a notebook.

The lab knows no report, so this module, which knows both, tells `Comparison` how it looks.
"""

from normwise.lab.compare import compare
from normwise.lab.comparison import Comparison, stored_comparison
from normwise.report.comparison import document
from normwise.report.page import fragment

__all__ = ["Comparison", "compare", "stored_comparison"]


def _view(comparison: Comparison) -> str:
    return fragment(document(comparison))


Comparison.view = _view
