"""`otca nodes`: lists the nodes that a workflow can be built of."""

from __future__ import annotations

import argparse


def add(commands) -> None:
    parser = commands.add_parser("nodes", help="list the nodes, with inputs and outputs", description=_run.__doc__)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Lists what the graph can be built of."""
    from ..nodes import NODE_CLASS_MAPPINGS

    for name, node in NODE_CLASS_MAPPINGS.items():
        print(f"{name}  ({node.TITLE}, {node.CATEGORY})\n    {node.DESCRIPTION}")
        for kind in ("required", "optional"):
            for socket, (type_, *details) in node.INPUT_TYPES().get(kind, {}).items():
                shown = type_ if isinstance(type_, str) else " | ".join(map(str, type_))
                default = details[0].get("default", "") if details else ""
                preset = f" = {default}" if default != "" else ""
                print(f"    <- {socket}: {shown}{preset}{' (optional)' if kind == 'optional' else ''}")
        for type_, socket in zip(node.RETURN_TYPES, getattr(node, "RETURN_NAMES", node.RETURN_TYPES), strict=True):
            print(f"    -> {socket}: {type_}")
        print()
    return 0
