"""The main job: train every variant of a grid on one text, and say how they compare."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normwise.errors import SettingError
from normwise.files import write_whole
from normwise.lab.comparison import Comparison, compare_stored
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.grid import expand
from normwise.lab.launch.local import Watcher, launch
from normwise.lab.plan import Failure, Plan
from normwise.lab.progress import watching
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.store import Contents, Damaged, Record, Store
from normwise.lab.train import Progress, check_device, model_config, train

Builder = Callable[[RunSettings, int], nn.Module]


def compare(
    settings: CompareSettings | None = None,
    *,
    build: Builder | None = None,
    watcher: Watcher[RunSettings] | None = None,
) -> Comparison:
    """Trains every variant and compares them. Finished runs in the run folder are not repeated.

    Args:
        settings: the grid, the text and the run folder; without it the default demonstration.
        build: makes the model from a run's settings and the vocabulary's size; a function of a
            module or script that worker processes can import. It is known by its name, so name
            another run folder when its code changes. Without it, normwise's Transformer.
        watcher: hears of every step; without it progress goes to standard error.

    Raises:
        UnknownName, SettingError, DataError, StoreError: before any run starts.
    """
    settings = settings or CompareSettings()
    if build is not None:
        settings = dataclasses.replace(settings, builder=_import_path(build))
    corpus, plan = prepare(settings)
    store = Store(settings.out)
    store.open(corpus)
    store.write_plan(plan)
    before = store.read()
    missing = store.missing(plan.runs, before.records)
    already = len(plan.runs) - len(missing)
    with nullcontext(watcher) if watcher else watching(missing, already) as listener:
        train_all(missing, store, settings.workers, listener)
    found = _of_plan(plan.within(settings.out), store.read(), before.damaged)
    return compare_stored(store.manifest(), found)


def train_all(
    runs: Sequence[RunSettings], store: Store, workers: int, watcher: Watcher[RunSettings]
) -> None:
    """Trains runs, each in a process, into an opened store, with the reasons of those that fail."""
    tasks = {run: partial(train_into, store.folder, run) for run in runs}
    for run, reason in launch(tasks, workers, watcher).items():
        store.write_failure(Failure(run, reason))


def train_into(folder: Path, run: RunSettings, progress: Progress) -> Record:
    """Trains one run and stores its record, and before it the weights that it keeps."""
    store = Store(folder)

    def keep(model: nn.Module) -> None:
        if run.keep_weights:
            path = store.weights(run)
            path.parent.mkdir(exist_ok=True)
            write_whole(path, lambda file: torch.save(model.state_dict(), file))

    record = train(run, store.corpus(), progress, keep)
    store.write(record)
    return record


def prepare(settings: CompareSettings) -> tuple[Corpus, Plan]:
    """Checks everything that can be checked before a run: settings, text, models."""
    check_device(settings)
    plan = expand(settings)
    corpus = load_corpus(settings.data, settings.tokenizer, settings.text_column)
    corpus.check_length(settings.seq_len)
    for run in plan.runs:
        if run.builder is None:
            model_config(run, corpus.vocab_size)
    return corpus, plan


def _of_plan(plan: Plan, contents: Contents, damaged: list[Damaged]) -> Contents:
    """What a run folder holds of one plan, and the files found damaged before it was run."""
    asked = {run.id for run in plan.runs}
    return Contents(
        records={key: record for key, record in contents.records.items() if key in asked},
        damaged=damaged,
        failures=[failure for failure in contents.failures if failure.run.id in asked],
        plans=[plan],
    )


def _import_path(build: Builder) -> str:
    """MODULE:FUNCTION of a builder, which workers import by name."""
    module, name = build.__module__, build.__qualname__
    found: Any = sys.modules.get(module)
    if not hasattr(found, "__file__") or getattr(found, name, None) is not build:
        raise SettingError(
            f"build must be a function of a file that worker processes can import. "
            f"It is {name} in {module}. Put it into a file of its own and import it from there."
        )
    return f"{module}:{name}"
