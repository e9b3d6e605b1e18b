"""`apmax methods`."""

from __future__ import annotations

EXAMPLES = """[bold]Examples[/]

apmax methods

apmax train clients.csv --target churn --loss focal --set stages.1.options.focal.focusing=1 --out runs/focal"""


def methods() -> None:
    """List the losses with their options, the surrogates of the AP losses, and the kinds of data with their models."""
    import inspect

    from rich.table import Table

    from apmax.cli import terminal
    from apmax.losses import LOSSES
    from apmax.surrogates import SURROGATES
    from apmax.workflows.data_types import KINDS

    console = terminal.output()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 1, 0))
    for name in ("--loss", "what it is", "options"):
        table.add_column(name, overflow="fold")
    for name, kind in LOSSES.items():
        said = (inspect.getdoc(kind) or "").split("\n\n")[0]
        options = [
            f"{key}={parameter.default!r}"
            for key, parameter in inspect.signature(kind).parameters.items()
            if key not in ("labels", "sample_weight", "validate", "num_pos", "prevalence")
        ]
        table.add_row(f"[bold]{name}[/]", " ".join(said.split()).replace("[", r"\["), ", ".join(options))
    console.print(table)
    console.print("Sums are written with a plus: ap+ce. All but those that say otherwise know `prevalence` too.")
    console.print(f"surrogates: {', '.join(SURROGATES)}")
    for name, each in KINDS.items():
        console.print(f"--kind {name}: {each.title}; models: {', '.join(each.models)}")
