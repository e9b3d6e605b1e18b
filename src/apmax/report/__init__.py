"""Reports: one self-contained HTML page on a model's ranking, and its content as JSON."""

from apmax.report.collect import collect_report
from apmax.report.content import (
    REPORT_FILE,
    REPORT_PAGE,
    Contender,
    Example,
    ExampleTable,
    Importance,
    ImportanceTable,
    LearningCurve,
    ReportData,
    ScoredPart,
    Subgroup,
    SubgroupTable,
    TargetReport,
    load_report,
    save_report,
)
from apmax.report.folder import (
    attach_tables,
    page_name,
    read_configuration,
    report_folder,
    report_training,
    store_report,
)
from apmax.report.importance import permutation_importance
from apmax.report.learning import learning_curves, read_learning_curves
from apmax.report.page import render_report, write_report
from apmax.report.rankings import headline, score_part, subgroup_table

__all__ = [
    "REPORT_FILE",
    "REPORT_PAGE",
    "Contender",
    "Example",
    "ExampleTable",
    "Importance",
    "ImportanceTable",
    "LearningCurve",
    "ReportData",
    "ScoredPart",
    "Subgroup",
    "SubgroupTable",
    "TargetReport",
    "attach_tables",
    "collect_report",
    "headline",
    "learning_curves",
    "load_report",
    "page_name",
    "permutation_importance",
    "read_configuration",
    "read_learning_curves",
    "render_report",
    "report_folder",
    "report_training",
    "save_report",
    "score_part",
    "store_report",
    "subgroup_table",
    "write_report",
]
