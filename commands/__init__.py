"""What `otca` can do: a file for each command, and options.py for what they share.

Each file has `add`, which declares the command's arguments, and `_run`, which imports what is heavy only once it is called.
"""

# In the order of `otca --help`.
COMMANDS = (
    "train",
    "validate",
    "bundle",
    "memory",
    "nodes",
    "sample",
    "export",
    "report",
    "serve",
    "score",
    "vote",
    "evaluate",
    "analyze",
    "compare",
    "vbench",
    "taste",
)
