"""`apmax methods`."""

from __future__ import annotations

EXAMPLES = """[bold]Examples[/]

apmax methods

apmax train clients.csv --target churn --loss focal --set stages.1.options.focal.focusing=1 --out runs/focal"""


def methods_command() -> None:
    """List the losses with their options, the surrogates of the AP losses, and the types of data with their models."""
    import inspect

    from rich.table import Table
    from rich.text import Text

    from apmax.cli import _console
    from apmax.losses import LOSSES
    from apmax.surrogates import SURROGATES
    from apmax.train import MINED_STAGE
    from apmax.train.config import MINING_DEFAULTS
    from apmax.workflows import DATA_TYPES

    console = _console.output()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 1, 0))
    for name in ("--loss", "description", "options"):
        table.add_column(name, overflow="fold")
    for name, loss in LOSSES.items():
        summary = (inspect.getdoc(loss) or "").split("\n\n")[0]
        options = [
            f"{key}={parameter.default!r}"
            for key, parameter in inspect.signature(loss).parameters.items()
            if key not in ("labels", "sample_weight", "validate", "num_pos", "prevalence")
        ]
        table.add_row(Text(name, "bold"), " ".join(summary.split()), ", ".join(options))
    mining = ", ".join(f"{name}={value!r}" for name, value in MINING_DEFAULTS.items())
    summary = "Cross-entropy on mined negatives, those the model scores highest; the options are the sampler's."
    table.add_row(Text(MINED_STAGE, "bold"), summary, mining)
    console.print(table)
    sums = f"Sums are written with a plus: ap+ce. All losses but {MINED_STAGE} have the option prevalence, too."
    console.print(sums, soft_wrap=True)
    console.print(f"surrogates: {', '.join(SURROGATES)}", soft_wrap=True)
    for kind, data_type in DATA_TYPES.items():
        models = ", ".join(data_type.models)
        console.print(
            f"--kind {kind}: {data_type.title}; models: {models}, or your own as package.module:callable",
            soft_wrap=True,
        )
