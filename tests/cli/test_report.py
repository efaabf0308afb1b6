"""`normwise report` and `normwise runs`, on a folder in which everything went wrong once."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from normwise.lab.compare import compare
from normwise.lab.plan import Failure
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.store import Store
from tests.cli.test_main import run

SETTINGS = CompareSettings(
    placements=("pre_norm", "post_norm"), warmup=(0,), depth=(1,), width=16, heads=2, seq_len=16,
    batch_size=4, steps=4, seeds=3,
)  # fmt: skip


class Silent:
    """A watcher that does not listen."""

    def step(self, run: RunSettings, done: int) -> None: ...
    def finished(self, run: RunSettings, record: object) -> None: ...
    def failed(self, run: RunSettings, reason: str) -> None: ...


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs of two variants."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    compare(dataclasses.replace(SETTINGS, out=str(folder)), watcher=Silent())
    return folder


@pytest.fixture
def worn(whole: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """The same with a damaged, a diverged, an unfinished and a failed run, and their ids."""
    folder = tmp_path / "worn"
    shutil.copytree(whole, folder)
    store = Store(folder)
    damaged, diverged, unfinished, failed = sorted(store.read().records)[:4]
    path = store.results / f"{damaged}.json"
    path.write_text(path.read_text()[:-50])
    record = store.read().records[diverged]
    store.write({**record, "validation_loss": None, "diverged_at": 3,
                 "train_loss": record["train_loss"][:2]})  # fmt: skip
    (store.results / f"{unfinished}.json").unlink()
    settings = store.read().records[failed]["settings"]
    (store.results / f"{failed}.json").unlink()
    store.write_failure(Failure(RunSettings.from_json(settings), "Traceback\nValueError: bad luck"))
    return folder, [damaged, diverged, unfinished, failed]


def test_a_page_is_made_in_the_run_folder(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run("report", str(whole), capsys=capsys)
    assert (code, out, err) == (0, f"Page: {whole / 'page.html'}\n", "")
    assert "has the lowest mean loss" in (whole / "page.html").read_text()
    other = tmp_path / "new" / "other.html"
    assert run("report", str(whole), "--out", str(other), capsys=capsys)[0] == 0
    assert other.read_text() == (whole / "page.html").read_text()


def test_everything_that_went_wrong_is_said(
    worn: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (damaged, _, unfinished, _) = worn
    assert run("report", str(folder), capsys=capsys)[0] == 0
    page = (folder / "page.html").read_text()
    assert "<h2>What went wrong</h2>" in page
    assert "loss not finite at step 3" in page and "diverged at 3" in page
    assert f"Damaged: results/{damaged}.json: it cannot be read: " in page
    assert f"; left out, {damaged[:8]} layer_norm" in page
    assert page.count(">Unfinished: ") == 1 and f">Unfinished: {unfinished[:8]} layer_norm" in page
    assert "ValueError: bad luck" in page


def test_the_status_names_what_is_missing_and_how_to_go_on(
    worn: tuple[Path, list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    folder, (damaged, diverged, unfinished, failed) = worn
    code, out, _ = run("runs", "status", str(folder), capsys=capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "3 finished, 1 of them diverged; 1 failed; 1 unfinished; 1 damaged."
    assert f"{diverged[:8]} diverged at step 3" in lines
    assert f"{unfinished[:8]} unfinished" in lines
    assert f"{failed[:8]} failed: ValueError: bad luck" in lines
    assert any(line.startswith(f"results/{damaged}.json is damaged: ") for line in lines)
    (command,) = [line for line in lines if line.startswith("normwise compare --steps 4")]
    assert command.endswith(f" --out {folder}")


def test_a_whole_folder_has_nothing_to_go_on_with(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run("runs", "status", str(whole), capsys=capsys)
    assert (code, out.strip()) == (0, "6 finished.")


def test_runs_are_listed(worn: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, (damaged, diverged, unfinished, failed) = worn
    code, out, _ = run("runs", "list", str(folder), capsys=capsys)
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["run"].split() == ["run", "placement", "seed", "state"]
    assert "diverged at step 3" in rows[diverged[:8]]
    assert rows[unfinished[:8]].split()[-1] == "unfinished"
    assert rows[damaged[:8]].split()[-1] == "damaged"
    assert "failed" in rows[failed[:8]]
    assert sum("loss " in row for row in rows.values()) == 2


def test_one_run_is_shown(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = sorted(Store(whole).read().records)
    code, out, _ = run("runs", "show", str(whole), first[:6], capsys=capsys)
    assert code == 0 and out.startswith(f"{first}: loss ")
    assert "layer_norm" in out and "torch" in out
    code, _, err = run("runs", "show", str(whole), "zzz", capsys=capsys)
    assert code == 2 and err.count("\n") == 1 and "'zzz' begins no run" in err


def test_the_comparison_is_shown(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("runs", "show", str(whole), capsys=capsys)
    assert code == 0
    assert "has the lowest mean loss" in out and "Conditions" not in out


def test_result_files_and_folders_are_merged(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = sorted(map(str, (whole / "results").glob("*.json")))
    assert run("report", *files[:4], files[0], capsys=capsys) == (0, "Page: page.html\n", "")
    assert "4" in (tmp_path / "page.html").read_text().split("finished runs</td>")[1][:80]


def test_charts_and_tables_are_exported(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, target = tmp_path / "page.html", tmp_path / "export"
    words = ("report", str(whole), "--out", str(page), "--export", str(target))
    code, out, _ = run(*words, capsys=capsys)
    files = sorted(path.name for path in target.iterdir())
    assert code == 0 and out.splitlines()[0] == f"Exported: {len(files)} files to {target}"
    for name in ("curves.png", "curves.svg", "finals.png", "losses.csv", "losses.md"):
        assert name in files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'DIR|FILE...'."),
        (["none"], "Invalid value for 'DIR|FILE...': Path 'none' does not exist."),
        (["."], "A run folder must hold results. . holds none. Pass a folder that normwise compare "
                "wrote, or result files from one."),
        (["text.json"], "A result file must be whole. text.json is not usable: it cannot be "
                        "read: Expecting value: line 1 column 1 (char 0). Pass a file from the "
                        "results of a run folder."),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("no json")
    assert run("report", *words, capsys=capsys) == (2, "", f"normwise: {message}\n")
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("report", str(whole), "--out", str(whole), capsys=capsys)
    assert code == 2
    assert err == (
        f"normwise: The report must be written somewhere. {whole} cannot be: Is a directory. "
        f"Name another place.\n"
    )


def test_two_texts_are_not_compared(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    settings = dataclasses.replace(SETTINGS, seeds=1, out=str(other), data=["other text " * 100])
    compare(settings, watcher=Silent())
    code, _, err = run("report", str(whole), str(other), capsys=capsys)
    assert code == 2 and err.startswith("normwise: A report compares runs on one text.")
    assert err.count("\n") == 1


def test_compare_ends_with_where_the_page_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*str(SETTINGS.command).split()[1:], "--seeds", "1", "--out", str(tmp_path / "run")]
    code, out, _ = run(*words, capsys=capsys)
    assert code == 0
    assert out.splitlines()[-1] == f"Page: {tmp_path / 'run' / 'page.html'}"
    code, out, err = run(*words, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["variants"]
    assert err.splitlines()[-1] == f"Page: {tmp_path / 'run' / 'page.html'}"


def test_a_report_needs_no_torch(whole: Path) -> None:
    code = (
        "import sys\nfrom normwise.cli.main import main\n"
        f"try:\n    main(['report', {str(whole)!r}])\n"
        "except SystemExit as end:\n    assert not end.code\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=100)
