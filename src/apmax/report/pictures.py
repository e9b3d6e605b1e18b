"""Pictures in a report: molecules with coloured atoms as SVG, thumbnails of images; both as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras
from apmax.data.images import Decoder
from apmax.data.molecules.featurise import chemistry, parse_smiles

MOST_ATOMS = 100
THUMBNAIL, MOLECULE_SIZE = 96, (220, 160)
RAISES, LOWERS = (0.0, 0.45, 0.70), (0.84, 0.37, 0.0)
"""Blue and orange, which colour-blind people can tell apart."""

ScoreSmiles = Callable[[list[str]], npt.NDArray[Any]]
"""Returns the score of each SMILES, NaN where it cannot be read."""


def masked_smiles(smiles: str) -> list[str]:
    """Return the molecule with each of its atoms in turn replaced by a dummy atom, which has no element.

    >>> masked_smiles("CO")
    ['*O', '*C']
    """
    chem = chemistry()
    molecule = parse_smiles(smiles)
    dummy = chem.Atom(0)
    result = []
    for atom in molecule.GetAtoms():
        masked = chem.RWMol(molecule)
        dummy.SetIsAromatic(atom.GetIsAromatic())
        masked.ReplaceAtom(atom.GetIdx(), dummy, preserveProps=False)
        result.append(chem.MolToSmiles(masked))
    return result


def atom_effects(smiles: Sequence[str], score: ScoreSmiles) -> list[npt.NDArray[np.float64]]:
    """Return for each molecule the loss of score where one of its atoms is masked; NaN where that cannot be scored.

    A molecule that cannot be read, or has more than 100 atoms, has no effects.
    """
    variants = [_variants(text) for text in smiles]
    texts = [text for each in variants for text in each]
    scores = np.asarray(score(texts), np.float64) if texts else np.empty(0)
    effects, start = [], 0
    for each in variants:
        own = scores[start : start + len(each)]
        start += len(each)
        effects.append(own[:1] - own[1:])
    return effects


def _variants(smiles: str) -> list[str]:
    """Return a molecule and its masked forms; nothing where it cannot be read or is too large."""
    try:
        if parse_smiles(smiles).GetNumAtoms() > MOST_ATOMS:
            return []
        return [smiles, *masked_smiles(smiles)]
    except (ValueError, RuntimeError):
        return []


def draw_molecule(smiles: str, effects: npt.NDArray[np.float64]) -> str:
    """Return a picture of a molecule, its atoms coloured by their effects, as a data URI; "" if it cannot be read.

    Args:
        smiles: The molecule.
        effects: The loss of score where an atom is masked, one an atom; or none.
    """
    try:
        molecule = parse_smiles(smiles)
    except ValueError:
        return ""
    draw = extras.load("rdkit.Chem.Draw.rdMolDraw2D", "molecules")
    canvas = draw.MolDraw2DSVG(*MOLECULE_SIZE)
    options = canvas.drawOptions()
    options.useBWAtomPalette()
    options.highlightBondWidthMultiplier = 1
    options.fillHighlights = True
    colours = {}
    known = np.where(np.isfinite(effects), effects, 0.0)
    largest = float(np.abs(known).max()) if len(known) == molecule.GetNumAtoms() else 0.0
    if largest > 0:
        for atom, effect in enumerate(known):
            strength = min(1.0, abs(effect) / largest)
            if strength >= 0.1:
                full = RAISES if effect > 0 else LOWERS
                colours[atom] = tuple(1 - 0.75 * strength * (1 - channel) for channel in full)
    draw.PrepareAndDrawMolecule(
        canvas, molecule, highlightAtoms=list(colours), highlightAtomColors=colours, highlightBonds=[]
    )
    canvas.FinishDrawing()
    return _data_uri("image/svg+xml", canvas.GetDrawingText().encode())


def draw_thumbnail(file: str, *, fit: str = "stretch") -> str:
    """Return a small picture of an image file as a data URI; "" if it cannot be read."""
    try:
        pixels = Decoder(THUMBNAIL, fit)(file)
    except (OSError, ValueError):
        return ""
    content = io.BytesIO()
    extras.load("PIL.Image", "images").fromarray(pixels).save(content, "JPEG", quality=82)
    return _data_uri("image/jpeg", content.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
