"""Builder and smoke test of the wheel and the sdist.

`make dist` builds both into dist/ and installs the wheel into a clean environment without extras. With names of
extras, or `--all`, it does the same for each of them: `python tools/check_distribution.py sklearn cli`. Every
environment starts as a copy of the one without extras (hard links), so that torch is installed once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"

CORE = """
import importlib.util, torch, apmax
labels = torch.tensor([0., 0., 0., 1.])
loss = apmax.APLoss(labels)
assert round(loss(torch.tensor([-1., 2., 0., 1.]), labels, torch.arange(4)).item(), 4) == 0.6667
assert apmax.average_precision([0.9, 0.8], [1, 0]).item() == 1
assert apmax.decide.choose_threshold([0.9, 0.8], [1, 0], recall=0.5).threshold == 0.9
assert importlib.util.find_spec("scipy") is None, "an environment without extras has no scipy"
try:
    apmax.APClassifier
except ModuleNotFoundError as error:
    assert "apmax[" in str(error), error
"""
SKLEARN = """
import numpy as np
from apmax import APClassifier
X = np.random.default_rng(0).normal(size=(60, 2)); y = (X[:, 0] > 1).astype(int)
assert APClassifier().fit(X, y).predict_proba(X).shape == (60, 2)
"""
TABLES = """
from pathlib import Path
from apmax.data import open_table
Path("a.csv").write_text("x;y\\n1;no\\n2;yes\\n")
assert open_table("a.csv").read().num_rows == 2
"""
COMMAND = """
import subprocess, sys
from pathlib import Path
Path("a.csv").write_text("x,y\\n" + "\\n".join(f"{k % 7},{int(k % 7 == 3)}" for k in range(70)) + "\\n")
run = lambda *words: subprocess.run([sys.executable, "-m", "apmax", *words], check=True)
run("train", "a.csv", "--target", "y", "--member", "linear_ce", "--out", "model")
run("predict", "model", "a.csv", "--out", "ranked.csv", "--sort")
assert Path("model/report.html").stat().st_size > 10_000
"""
SMOKE = {
    "train": """
import torch
from torch.utils.data import TensorDataset
from apmax.train import Data, Run, Stage, fit
data = TensorDataset(torch.randn(40, 2), (torch.arange(40) % 4 == 0).float())
assert len(fit(torch.nn.Linear(2, 1), Data(data, data), Run(stages=(Stage(epochs=1),))).records) == 1
""",
    "sklearn": SKLEARN,
    "boosting": SKLEARN
    + """
import lightgbm
from apmax.integrations.boosting import APObjective
lightgbm.LGBMClassifier(objective=APObjective(), n_estimators=2, verbose=-1).fit(X, y)
""",
    "xgboost": """
import numpy as np, xgboost
from apmax.integrations.boosting import APObjective
X = np.random.default_rng(0).normal(size=(60, 2)); y = (X[:, 0] > 1).astype(int)
xgboost.train({}, xgboost.DMatrix(X, y), 2, obj=APObjective())
""",
    "tables": TABLES,
    "molecules": TABLES
    + """
from apmax.data.molecules import molecule_dataset
assert len(molecule_dataset(["CCO", "c1ccccc1"], workers=1)[0]) == 2
""",
    "descriptastorus": """
from apmax.data.molecules import molecule_dataset
assert len(molecule_dataset(["CCO", "c1ccccc1"], levels=True, normalisation="descriptastorus", workers=1)[0]) == 2
""",
    "images": """
import torch
from PIL import Image
from apmax.data.images import decode_all
from apmax.models.images import resnet10
Image.new("RGB", (16, 16)).save("a.png")
assert len(decode_all(["a.png"], 16, workers=1).store) == 1
assert resnet10(width=8, stem="small")(torch.zeros(1, 3, 16, 16)).numel() == 1
""",
    "report": """
from apmax.report import ReportData, TargetReport, headline, score_part, write_report
part = score_part("test", [3., 2., 1., 0.], [1., 0., 1., 0.])
write_report(ReportData("a", (TargetReport("y", "1", (headline(part),), (part,)),)), "a.html")
""",
    "tune": COMMAND
    + """
run("tune", "--help")
import optuna
""",
    "lightning": """
import lightning
from apmax.integrations.lightning import RankingMixin
class Model(RankingMixin, lightning.LightningModule): pass
""",
    "cli": COMMAND,
    "all": COMMAND,
}
"""What must run with each extra alone, in an empty folder."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist into an empty folder, check what they contain, and return their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    wheel, sdist = next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    foreign = [name for name in names if not name.startswith(("apmax/", "apmax-"))]
    if foreign or "apmax/reproduce/grid.toml" not in names or "apmax/py.typed" not in names:
        raise SystemExit(f"{wheel.name} lacks files, or has foreign ones: {foreign}")
    return wheel, sdist


def check_install(code: str, environment: Path, *arguments: str) -> None:
    """Run `pip install` with some arguments in an environment, and code in an empty folder, away from the checkout."""
    python = environment / "bin" / "python"
    _run(str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), *arguments)
    with tempfile.TemporaryDirectory() as folder:
        _run(str(python), "-c", code, cwd=folder)


def _run(*command: str, cwd: str | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=cwd, env=environment)


def main() -> None:
    """Build, and test what the arguments ask for."""
    parser = argparse.ArgumentParser(description="Build wheel and sdist, and test them in clean environments.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"some of {', '.join(SMOKE)}")
    parser.add_argument("--all", action="store_true", help="every extra")
    options = parser.parse_args()
    unknown = set(options.extras) - set(SMOKE)
    if unknown:
        parser.error(f"no such extra: {', '.join(sorted(unknown))}")
    wheel, sdist = build(DIST)
    with tempfile.TemporaryDirectory(dir=DIST) as folder:
        bare = Path(folder, "bare")
        _run(sys.executable, "-m", "venv", str(bare))
        check_install(CORE, bare, str(wheel))
        print("no extras: ok", flush=True)
        failed: list[str] = []
        for extra in SMOKE if options.all else options.extras:
            environment = Path(folder, extra)
            shutil.copytree(bare, environment, symlinks=True, copy_function=os.link)
            try:
                check_install(SMOKE[extra], environment, f"{wheel}[{extra}]")
            except subprocess.CalledProcessError:
                failed.append(extra)
            shutil.rmtree(environment)
            print(f"{extra}: {'FAILED' if extra in failed else 'ok'}", flush=True)
        check_install(CORE, bare, "--no-deps", "--force-reinstall", str(sdist))
        print("sdist: ok", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
