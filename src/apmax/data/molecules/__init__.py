"""Molecules: from SMILES to flat, memory-mapped graphs and batches of plain tensors."""
