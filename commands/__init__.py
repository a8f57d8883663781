"""The commands of `otca`: modules of commands that belong together, and options.py for what they share."""

MODULES = (
    "training",
    "recipe",
    "proving",
    "bundle",
    "pictures",
    "pages",
    "judging",
    "compare",
)  # in the order of `otca --help`
