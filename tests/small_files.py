"""Small files of tables, molecules and images for tests of the workflows and the command line."""

from __future__ import annotations

import csv
import shutil

import numpy as np

CORES = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "C1CCNCC1", "c1ccc2ccccc2c1", "C1CCOC1", "c1ccsc1"]
ARMS = ["C", "CC", "CCC", "OC", "NC", "FC", "BrC", "ClC", "CO", "CN", "CCCC", "CCO"]
SMILES = [arm + core for core in CORES for arm in ARMS]
"""96 molecules of 8 scaffolds; the bromides are the positives."""

IMAGES, EVERY = 72, 6
"""Number of images, every sixth of which is positive."""
POSITIVE_IMAGES = IMAGES // EVERY


def write_csv(path, rows):
    """Write dicts as a csv and return its path as text."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_csv_with_commas(path, rows, names=("age", "income")):
    """Write rows delimited by semicolons, some columns with decimal commas, and return the path as text."""
    cells = [[text.replace(".", ",") if name in names else text for name, text in row.items()] for row in rows]
    path.write_text("\n".join(map(";".join, [list(rows[0]), *cells])) + "\n")
    return str(path)


def read_csv(path):
    """Return the rows of a csv as dicts."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def client_rows(count=400, seed=0):
    """Return rows with an id, a number, a category, a number with gaps, and the target `bought`."""
    generator = np.random.default_rng(seed)
    age, city = generator.normal(50, 10, count), generator.choice(["rome", "oslo", "bern"], count)
    income = [
        f"{value:.2f}" if keep else "" for value, keep in zip(age * 3, generator.random(count) < 0.9, strict=True)
    ]
    score = (age - 50) / 10 + (city == "oslo") + generator.normal(0, 0.7, count)
    label = np.where(score > np.quantile(score, 0.9), "yes", "no")
    columns = zip(range(count), age, city, income, label, strict=True)
    return [{"id": f"{k:05d}", "age": f"{a:.3f}", "city": c, "income": i, "bought": y} for k, a, c, i, y in columns]


def write_xy(path, count=80):
    """Write a csv of one number x and a target y, and return its path."""
    rows = [f"{k % 7},{int(k % 10 == 0)}" for k in range(count)]
    path.write_text("\n".join(["x,y", *rows]) + "\n")
    return path


def write_molecules(folder):
    """Write a table with two targets, a library as csv and as .smi; each table has a SMILES that cannot be read."""
    lines = [f"{text},{int('Br' in text)},{'' if k % 3 else int('N' in text)}" for k, text in enumerate(SMILES)]
    lines.insert(5, "C(C,0,")
    (folder / "train.csv").write_text("\n".join(["smiles,active,toxic", *lines]) + "\n")
    library = [f"{k},{text}" for k, text in enumerate([*SMILES[:30], "c1cc", *SMILES[30:]])]
    (folder / "library.csv").write_text("\n".join(["id,SMI", *library]) + "\n")
    (folder / "library.smi").write_text("".join(f"{text} m{k}\n" for k, text in enumerate(SMILES)))


def draw_image(path, generator, positive):
    """Write an image of noise, with a brighter centre if it is positive."""
    from PIL import Image

    pixels = generator.integers(0, 160, (20, 24, 3), dtype=np.uint8)
    pixels[5:15, 6:18, 0] += 90 * positive
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_images(folder):
    """Write images by class and in one folder, some files that are no images, and a table of two targets."""
    generator = np.random.default_rng(0)
    lines = []
    (folder / "unsorted").mkdir()
    for number in range(IMAGES):
        positive = number % EVERY == 0
        name = f"{'malignant' if positive else 'benign'}/{number:03d}"
        draw_image(folder / "images" / f"{name}.png", generator, positive)
        lines.append(f"{name},{int(positive)},{'' if number % 3 else int(number % 9 == 0)}")
        if number < 40:
            shutil.copy(folder / "images" / f"{name}.png", folder / "unsorted" / f"{number:03d}.png")
    (folder / "images" / "benign" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "images" / "notes.txt").write_text("of last year")
    (folder / "unsorted" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    (folder / "tables").mkdir()
    (folder / "tables" / "a.csv").write_text("\n".join(["name,bad,worse", *lines]) + "\n")
