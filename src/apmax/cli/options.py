"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA, PICTURES, HOLD_OUT, TRAINING = "Data", "Images", "Rows to choose by", "Training"

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA|RUN.TOML",
        help="csv, csv.gz or parquet; a folder with a folder per class of images; or a job as TOML.",
    ),
]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The --out of `apmax train`.")]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="The column, or the class of images, to be predicted. May be repeated for molecules and images.",
        rich_help_panel=DATA,
    ),
]
Smiles = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of molecules; makes the kind molecules.", rich_help_panel=DATA),
]
OtherSmiles = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of molecules, if not called as in training.")
]
OnError = Annotated[
    str | None,
    typer.Option(
        metavar="skip|raise",
        help="Leave out and name molecules and images that cannot be read (default), or stop.",
        rich_help_panel=DATA,
    ),
]
OtherPath = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of image files, if not called as in training.")
]
OtherRoot = Annotated[Path | None, typer.Option(metavar="DIR", help="What their paths begin at (the folder of DATA).")]
OtherEnding = Annotated[str | None, typer.Option(metavar="TEXT", help="Added to the paths, if not as in training.")]
FilesColumn = Annotated[
    str | None,
    typer.Option(
        "--path", metavar="COLUMN", help="The column of files; makes the kind images (path).", rich_help_panel=PICTURES
    ),
]
Root = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="What paths begin at (the folder of DATA).", rich_help_panel=PICTURES),
]
Ending = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Added to every path, such as .jpg.", rich_help_panel=PICTURES)
]
Size = Annotated[
    int | None,
    typer.Option(
        min=8, metavar="N", help="Resize to N×N (224, or the images' own size if smaller).", rich_help_panel=PICTURES
    ),
]
Augmentation = Annotated[
    str | None,
    typer.Option(
        "--augment",
        metavar="NAME",
        help="In training: small (shifts, mirror; default up to 64×64), large (crops, colours), none.",
        rich_help_panel=PICTURES,
    ),
]
Width = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Channels of the network's first layer (64).", rich_help_panel=PICTURES),
]
Stem = Annotated[
    str | None,
    typer.Option(
        metavar="imagenet|small", help="How the network begins; small: 3×3, no pooling.", rich_help_panel=PICTURES
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Begin with these weights, such as torchvision's resnet18.", rich_help_panel=PICTURES
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(metavar="VALUE", help="Which of its values is the positive, if not plain.", rich_help_panel=DATA),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TYPE",
        help="What a column is: number, category, date or drop. May be repeated.",
        rich_help_panel=DATA,
    ),
]
Kind = Annotated[
    str | None, typer.Option(metavar="NAME", help="Kind of data: table, molecules, images.", rich_help_panel=DATA)
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="APMAX_DATA", help="Where else to look for files.", rich_help_panel=DATA),
]
Valid = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Choose by these rows, not a part of DATA.", rich_help_panel=HOLD_OUT),
]
Group = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Hold out whole groups, such as patients.", rich_help_panel=HOLD_OUT),
]
Time = Annotated[str | None, typer.Option(metavar="COLUMN", help="Hold out the latest rows.", rich_help_panel=HOLD_OUT)]
Split = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="stratified (default), random, scaffold.", rich_help_panel=HOLD_OUT),
]
Share = Annotated[float | None, typer.Option(metavar="X", help="How much of DATA (0.2).", rich_help_panel=HOLD_OUT)]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="mlp or linear; for molecules gine, mpnn, ml-mpnn; for images resnet18, resnet34. Default: the first.",
        rich_help_panel=TRAINING,
    ),
]
LossName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The last stage's, after one of cross-entropy: ap+ce (default), ap, focal, … ; or ce alone. "
        "`apmax methods` lists them.",
        rich_help_panel=TRAINING,
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Of the last stage.", rich_help_panel=TRAINING)]
BatchSize = Annotated[int | None, typer.Option(min=2, metavar="N", help="Rows per step.", rich_help_panel=TRAINING)]
Seed = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Of everything random (0).", rich_help_panel=TRAINING)
]
Change = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Any other setting, such as stages.1.lr=1e-4. May be repeated.",
        rich_help_panel=TRAINING,
    ),
]
