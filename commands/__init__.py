"""What `otca` can do: a file for each family of commands. Nothing heavy is imported before one of them runs."""
