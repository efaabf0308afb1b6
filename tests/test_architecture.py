"""Imports run downward, in the order of docs/design.md; and this test can fail."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "normwise"

ORDER: list[set[str]] = [
    {"cli"},
    {"report"},
    {"claims"},
    {"lab", "bench"},
    {"model", "probe", "convert"},
    {"residual", "weight_init", "schedules", "anatomy"},
    {"norms"},
    {"ops"},
    {"table", "conditions", "files"},
    {"theory", "errors"},
]
HOMES = {
    "numba": ["ops.numba_cpu"],
    "triton": ["ops.triton_gpu"],
    "ray": ["lab.launch"],
    "submitit": ["lab.launch"],
    "altair": ["report"],
    "vl_convert": ["report"],
    "jinja2": ["report"],
    "platformdirs": ["report"],
    "markdown_it": ["report.prose"],
    "mdit_py_plugins": ["report.prose"],
    "latex2mathml": ["report.prose"],
    "click": ["cli"],
    "rich": ["cli", "report", "lab.progress"],
    "accelerate": ["lab"],
    "scipy": ["lab"],
    "datasets": ["lab.data"],
    "transformers": [
        "bench.peers",
        "lab.data",
        "lab.targets",
        "anatomy.hugging_face",
        "probe.integrations",
        "convert",
    ],
    "lightning": ["probe.integrations"],
}
LATE_IMPORTS = {
    "bench.peers",
    "cli.commands",
    "ops.dispatch",
    "lab.data",
    "lab.launch",
    "lab.targets",
    "probe.diagnosis",
}
DRAWERS = {"utils", "helpers", "common", "misc", "core", "tools"}


@dataclass(frozen=True)
class Import:
    """One import: who, whom, and whether inside a function."""

    importer: str
    target: str
    inner: bool


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(root: Path) -> Iterator[Import]:
    for path in sorted((root / PACKAGE).rglob("*.py")):
        tree = ast.parse(path.read_text())
        inner = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            for target in targets(node, root):
                yield Import(module_name(path, root), target, id(node) in inner)


def targets(node: ast.AST, root: Path) -> list[str]:
    """The modules that a statement imports; `from package import module` names the module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = "." * node.level + (node.module or "")
        inside = [f"{package}.{alias.name}" for alias in node.names]
        modules = [name for name in inside if (root / f"{name.replace('.', '/')}.py").exists()]
        return modules or [package]
    return []


def faults(root: Path) -> list[str]:
    """Everything in a source tree that breaks a rule, one line each."""
    found = list(imports_of(root))
    return [
        *upward(found), *cycles(found), *strangers(found), *late(found), *drawers(root)
    ]  # fmt: skip


def upward(found: list[Import]) -> Iterator[str]:
    level = {part: depth for depth, parts in enumerate(ORDER) for part in parts}
    for item in found:
        if item.target.startswith("."):
            yield f"{item.importer}: a relative import"
        if not item.importer or not item.target.startswith(f"{PACKAGE}."):
            continue
        ours, theirs = item.importer.split(".")[0], item.target.split(".")[1]
        if ours == "__main__" or ours == theirs:
            continue
        if ours not in level or theirs not in level:
            yield f"{item.importer} imports {item.target}: a part that the order does not name"
        elif level[theirs] <= level[ours]:
            yield f"{item.importer} imports {item.target}: not downward"


def cycles(found: list[Import]) -> Iterator[str]:
    edges: dict[str, set[str]] = {}
    for item in found:
        if item.importer and item.target.startswith(f"{PACKAGE}."):
            edges.setdefault(item.importer, set()).add(item.target.removeprefix(f"{PACKAGE}."))
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> Iterator[str]:
        if module in path:
            yield "a cycle: " + " -> ".join([*path[path.index(module) :], module])
        elif module not in done:
            for target in sorted(edges.get(module, ())):
                yield from visit(target, (*path, module))
            done.add(module)

    for module in sorted(edges):
        yield from visit(module, ())


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(f"{place}.")


def strangers(found: list[Import]) -> Iterator[str]:
    for item in found:
        homes = HOMES.get(item.target.split(".")[0])
        if homes is not None and not any(within(item.importer, home) for home in homes):
            yield f"{item.importer} imports {item.target}: its home is {', '.join(homes)}"


def late(found: list[Import]) -> Iterator[str]:
    for item in found:
        if item.inner and not any(within(item.importer, place) for place in LATE_IMPORTS):
            yield f"{item.importer} imports {item.target} inside a function"


def drawers(root: Path) -> Iterator[str]:
    for path in (root / PACKAGE).rglob("*"):
        if path.stem.split("_")[-1] in DRAWERS:
            yield f"{path.name}: a drawer, name it by what it holds"


def test_the_package_keeps_the_order() -> None:
    assert faults(SOURCE) == []


PLANTED = {
    "report from probe": ("probe/record.py", "import normwise.report.terminal", "not downward"),
    "triton in norms": ("norms/layer_norm.py", "import triton", "its home is"),
    "probe from theory": ("theory/growth.py", "from normwise.probe import stats", "not downward"),
    "a sibling": ("model/config.py", "from normwise.probe import stats", "not downward"),
    "a cycle": ("ops/rounding.py", "from normwise.ops import functional", "a cycle"),
    "a late import": ("norms/settings.py", "def f():\n    import json", "inside a function"),
    "a relative import": ("norms/settings.py", "from . import registry", "a relative import"),
    "an unnamed part": ("extra.py", "import normwise.errors", "does not name"),
}


def copied(tmp_path: Path) -> Path:
    for path in (SOURCE / PACKAGE).rglob("*.py"):
        target = tmp_path / path.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    return tmp_path


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    file, line, complaint = PLANTED[fault]
    root = copied(tmp_path)
    target = root / PACKAGE / file
    target.write_text((target.read_text() if target.exists() else "") + f"\n{line}\n")
    found = faults(root)
    assert found and any(complaint in text for text in found)


def test_a_drawer_is_found(tmp_path: Path) -> None:
    root = copied(tmp_path)
    (root / PACKAGE / "lab" / "data_utils.py").write_text("")
    assert faults(root) == ["data_utils.py: a drawer, name it by what it holds"]


def test_every_home_is_a_known_package_or_planned() -> None:
    assert not {name for name in HOMES if name in sys.stdlib_module_names}
