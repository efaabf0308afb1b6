"""`normwise check`: is the signal of a model healthy, before anything is trained?"""

import json
from pathlib import Path
from typing import Any

import click

from normwise.cli.commands.compare import Several
from normwise.lab.check_settings import LENGTH, PAGE, CheckSettings

DEFAULT = CheckSettings(target="")
SEVERITIES = ("warn", "fail", "never")
LENGTH_HELP = f"Tokens in a sequence.  [default: {LENGTH}, or as many as the model takes]"


@click.command("check")
@click.argument("target")
@click.option("--batch", metavar="MODULE:FUNCTION", help="Gives the batch; else it is made up.")
@click.option("--seq-len", type=int, help=LENGTH_HELP)
@click.option("--batch-size", type=int, default=DEFAULT.batch_size, show_default=True,
              help="Sequences.")  # fmt: skip
@click.option("--lr", type=float, default=DEFAULT.lr, show_default=True,
              help="Peak rate of AdamW, whose first step is tried; 0 tries none.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]),
              help="Trained in; by default that of the weights.")  # fmt: skip
@click.option("--stage", type=click.Choice(["initial", "trained"]),
              help="Of the weights; by default it is found out.")  # fmt: skip
@click.option("--checks", type=Several(str), help="Of `normwise list checks`.  [default: all]")
@click.option("--pattern", metavar="REGEX", help="Paths of the blocks, if no stream is found.")
@click.option("--try", "remedy", metavar="REMEDY",
              help="Of `normwise list remedies`: build the model with it and compare.")  # fmt: skip
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True,
              help="Of fresh weights and the batch.")  # fmt: skip
@click.option("--allow-pickle", is_flag=True, help="Load weights that are no safetensors.")
@click.option("--fail-severity", type=click.Choice(SEVERITIES), default="fail", show_default=True,
              help="Exit code 1 from this on.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=PAGE, show_default=True,
              help="The page; check.json lies beside it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(*, out: Path, as_json: bool, fail_severity: str, **values: Any) -> int:
    """Say whether signal and gradient of a model are healthy, and what to change.

    One forward and backward pass on one batch, one optimizer step that is taken back; nothing is
    trained or downloaded. TARGET is one of

    \b
      hf:PATH             a Hugging Face folder, or a config.json (fresh weights)
      own:FIELD=VALUE,... normwise's own model, as in own:placement=post_norm
      FILE.json           the same, fields of TransformerConfig in a file
      MODULE:FUNCTION     a function without arguments that gives a model
    """
    from normwise.files import write_result
    from normwise.lab.check import run_check
    from normwise.report.diagnosis import document
    from normwise.report.files import save
    from normwise.report.page import page
    from normwise.report.terminal import write

    found = run_check(CheckSettings(**values))
    content = found.to_json()
    write_result(out.with_name("check.json"), content)
    report = document(found.result, found.before)
    if as_json:
        click.echo(json.dumps(content, indent=1, allow_nan=False))
    else:
        write(report)
    save(out, page(report).encode())
    click.echo(f"Page: {out}", err=as_json)
    return int(fail_severity != "never" and found.reaches(fail_severity))
