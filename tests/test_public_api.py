"""The public names: on one screen, typed, and light to import."""

import ast
import inspect
import subprocess
import sys

import pytest

import normwise as nw
from normwise.lab.data import load_corpus

HEAVY = (
    "torch", "numba", "accelerate", "transformers", "datasets", "rich", "scipy", "altair",
    "vl_convert", "jinja2",
)  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """Heavy packages that a fresh interpreter has loaded after some code."""
    probe = f"{code}\nimport sys\nprint(' '.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    return set(run.stdout.splitlines()[-1].split()) & set(HEAVY)


def test_importing_normwise_loads_nothing_heavy() -> None:
    assert loaded_after("import normwise") == set()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "from normwise.cli.main import main\n"
        "for words in ([], ['check'], ['compare'], ['list'], ['report'], ['runs'],\n"
        "              ['runs', 'show']):\n"
        "    try:\n        main([*words, '--help'])\n"
        "    except SystemExit as end:\n        assert not end.code"
    )
    assert loaded_after(code) == set()


@pytest.mark.parametrize(
    ("package", "purpose"),
    [
        ("accelerate", "A comparison"), ("scipy", "A comparison"),
        ("scipy.special", "A comparison"), ("altair", "A report"), ("jinja2", "A report"),
        ("vl_convert", "A report"), ("platformdirs", "A report"),
    ],
)  # fmt: skip
def test_a_missing_extra_is_named(package: str, purpose: str) -> None:
    code = (
        f"import sys\nsys.modules[{package!r}] = None\n"
        "from normwise.cli.main import main\nmain(['compare', '--out', 'none'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    package = package.partition(".")[0]
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        f"normwise: {purpose} needs the package {package}, which is not installed. "
        f"Run: pip install 'normwise[lab]'\n"
    )


@pytest.mark.parametrize(
    ("package", "options", "purpose"),
    [("datasets", "'hf:x'", "hf:x"), ("transformers", "['a'], 'tok'", "The tokenizer tok")],
)
def test_a_missing_hugging_face_package_is_named(
    package: str, options: str, purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(nw.NormwiseError) as caught:
        load_corpus(*ast.literal_eval(f"[{options}]"))
    assert str(caught.value) == (
        f"{purpose} needs the package {package}, which is not installed. "
        f"Run: pip install 'normwise[hf]'"
    )


def test_the_guard_sees_a_heavy_import() -> None:
    assert "torch" in loaded_after("import normwise; normwise.rms_norm")


@pytest.mark.parametrize("name", nw.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert inspect.getdoc(getattr(nw, name))
    assert name in dir(nw)


def test_the_checkers_see_the_same_names() -> None:
    source = inspect.getsource(nw)
    typed = {
        line.split(" as ")[-1].strip()
        for line in source.splitlines()
        if line.startswith("    from normwise.")
    }
    assert typed == set(nw.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'normwise' has no attribute 'nothing'"):
        _ = nw.nothing


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
def test_functions_begin_with_torch_s_arguments(name: str) -> None:
    own = list(inspect.signature(getattr(nw, name)).parameters)
    torch_s = {
        "layer_norm": ["normalized_shape", "weight", "bias", "eps"],
        "rms_norm": ["normalized_shape", "weight", "eps"],
    }[name.removeprefix("add_")]
    assert own[0] == "input"
    assert [p for p in own[1:] if p != "residual"][: len(torch_s)] == torch_s


def test_keywords_have_one_default_everywhere() -> None:
    shared = ("unit_offset", "rounding", "out_dtype", "residual_rounding")
    functions = [getattr(nw, name) for name in nw.__all__ if name.endswith(("_norm", "norm_add"))]
    for keyword in shared:
        defaults = {
            str(parameter.default)
            for function in functions
            if inspect.isfunction(function)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name == keyword
        }
        assert len(defaults) == 1, keyword
