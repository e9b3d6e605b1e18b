"""Committees of molecules against other methods, on public sets."""
