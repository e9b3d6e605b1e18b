"""Pages about results: summaries, tables, sentences and figures, and the files that hold them."""

from apmax.reproduce.pages.epoch_choice import epoch_choice_findings, epoch_choice_table, epoch_choices
from apmax.reproduce.pages.figures import has_figure
from apmax.reproduce.pages.power import cell_powers, pooled_methods, pooled_table, power_table
from apmax.reproduce.pages.render import escape_markdown, file_stem, markdown_table, replace_block, write_item_files
from apmax.reproduce.pages.summary import (
    Histories,
    ItemSummary,
    MethodSummary,
    compare_with_base,
    summarise_item,
)
from apmax.reproduce.pages.tables import (
    ResultTable,
    base_table,
    cell_table,
    opening_lines,
    overview_table,
    tuning_table,
)
from apmax.reproduce.pages.text import table_notes

__all__ = [
    "Histories",
    "ItemSummary",
    "MethodSummary",
    "ResultTable",
    "base_table",
    "cell_powers",
    "cell_table",
    "compare_with_base",
    "epoch_choice_findings",
    "epoch_choice_table",
    "epoch_choices",
    "escape_markdown",
    "file_stem",
    "has_figure",
    "markdown_table",
    "opening_lines",
    "overview_table",
    "pooled_methods",
    "pooled_table",
    "power_table",
    "replace_block",
    "summarise_item",
    "table_notes",
    "tuning_table",
    "write_item_files",
]
