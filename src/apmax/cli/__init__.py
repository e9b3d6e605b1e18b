"""The command `apmax`: one file a command. Nothing heavy is imported before a command runs."""
