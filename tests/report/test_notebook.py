"""A comparison shows itself in a notebook."""

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELLS = [
    """
import normwise as nw
settings = nw.CompareSettings(
    placements=("pre_norm", "post_norm"), warmup=0, depth=1, width=16, heads=2, seq_len=16,
    batch_size=4, steps=4, out="run",
)
result = nw.compare(settings)
""",
    "result",
]


def executed(folder: Path) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS]
    )
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}})
    return client.execute()


def test_a_comparison_shows_itself(tmp_path: Path) -> None:
    """As tables and drawn charts, without a script, and with a short text beside them."""
    (output,) = executed(tmp_path).cells[1].outputs
    html = output.data["text/html"]
    assert "has the lowest mean loss" in html
    assert html.count("<svg") == html.count('<div class="chart"') == 4
    assert "<script" not in html
    assert re.fullmatch(r"<Comparison of 2 variants in 4 runs on .*>", output.data["text/plain"])


def test_its_style_touches_nothing_else() -> None:
    """Every rule of the style sheet is about the report's own element, or the charts' tooltip."""
    css = (Path(__file__).parents[2] / "src/normwise/report/page.css").read_text()
    selectors = re.findall(r"(?:^|[};])\s*([^{}@;]+)\{", re.sub(r"@media[^{]*\{", "", css))
    assert len(selectors) > 20
    for selector in ",".join(selectors).split(","):
        assert selector.strip().startswith((".normwise", "#vg-tooltip-element")), selector
