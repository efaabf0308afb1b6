"""The main job: train every variant of a grid on one text, and say how they compare."""

import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from normwise.errors import SettingError
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.grid import Grid, Skipped, expand
from normwise.lab.launch.local import Failure, Watcher, launch
from normwise.lab.prediction import predicted_stream, token_moments
from normwise.lab.progress import watching
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.store import Damaged, Record, Store
from normwise.lab.summary import (
    MODEL_AXES,
    InitialProfile,
    VariantSummary,
    group,
    mean_profile,
    summarize,
)
from normwise.lab.train import check_device, model_config

Builder = Callable[[RunSettings, int], nn.Module]


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to, as data; `nw.show` prints it.

    Args:
        settings: what was asked for.
        data: the text: source, sha256, tokens, unigram level.
        variants: one summary for each point of the grid but rate and seed.
        profiles: stream and gradients at initialisation, one for each model.
        skipped: pairs that make no sense.
        failed: runs that ended without a result.
        damaged: result files that were found unusable and left out.
        records: the stored runs behind all this.
    """

    settings: CompareSettings
    data: dict[str, Any]
    variants: list[VariantSummary]
    profiles: list[InitialProfile]
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the loss curves, which stay in the run folder."""
        settings = dataclasses.replace(self.settings, data=self.data["source"])
        content = dataclasses.asdict(dataclasses.replace(self, settings=settings, records=[]))
        del content["records"]
        content["damaged"] = [
            {"path": str(item.path), "reason": item.reason} for item in self.damaged
        ]
        content["conditions"] = self.records[0]["conditions"] if self.records else None
        return content


def compare(
    settings: CompareSettings | None = None,
    *,
    build: Builder | None = None,
    watcher: Watcher | None = None,
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
    corpus, grid = prepare(settings)
    store = Store(settings.out)
    store.open(corpus)
    stored, damaged = store.read()
    missing = [run for run in grid.runs if run.id not in stored]
    already = len(grid.runs) - len(missing)
    with nullcontext(watcher) if watcher else watching(missing, already) as listener:
        failed = launch(missing, Path(settings.out), settings.workers, listener)
    return collect(settings, store, grid, failed, damaged)


def prepare(settings: CompareSettings) -> tuple[Corpus, Grid]:
    """Checks everything that can be checked before a run: settings, text, models."""
    check_device(settings)
    grid = expand(settings)
    corpus = load_corpus(settings.data, settings.tokenizer, settings.text_column)
    corpus.check_length(settings.seq_len)
    for run in grid.runs:
        if run.builder is None:
            model_config(run, corpus.vocab_size)
    return corpus, grid


def collect(
    settings: CompareSettings,
    store: Store,
    grid: Grid,
    failed: list[Failure],
    damaged: list[Damaged],
) -> Comparison:
    """The comparison from what the run folder holds of this grid."""
    corpus = store.corpus()
    stored, _ = store.read()
    records = [stored[run.id] for run in grid.runs if run.id in stored]
    return Comparison(
        settings=settings,
        data=corpus.describe(),
        variants=summarize(records, corpus.unigram_loss),
        profiles=[
            _profile(axes, runs, corpus)
            for axes, runs in group(records, MODEL_AXES)
            if runs[0]["initial"]["stream"]
        ],
        skipped=list(grid.skipped),
        failed=failed,
        damaged=damaged,
        records=records,
    )


def _profile(axes: dict[str, str | int], runs: list[Record], corpus: Corpus) -> InitialProfile:
    run = RunSettings.from_json(runs[0]["settings"])
    predicted = None
    if run.builder is None:
        config = model_config(run, corpus.vocab_size)
        entry = token_moments(config, corpus.collision)
        predicted = predicted_stream(config, entry, run.seq_len)
    return InitialProfile(
        axes=axes,
        stream=mean_profile(runs, "stream"),
        branch=mean_profile(runs, "branch"),
        stream_gradient=mean_profile(runs, "stream_gradient"),
        predicted=predicted,
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
