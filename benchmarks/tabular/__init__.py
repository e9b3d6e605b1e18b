"""Evidence for committees on tables: runner, studies and report."""
