"""A graph in ComfyUI's API format: read, checked and run without ComfyUI, and with its semantics.

By stage, each standing on those above it:

    graph      the API format itself: links, titles, the ids of nodes that others ask for
    problem    what is wrong, in words: node, input, value, fix
    reading    a file → a graph; its author may mean harm
    declared   a graph and its node classes → nodes with constants, links and what each input takes
    checking   declared nodes → problems
    running    `Workflow`: load, set, validate, and run with ComfyUI's cache

lineage stands beside them: what a node's value comes from, and whether two graphs train alike.
"""

from .problem import Problem, WorkflowError
from .running import NodeError, Workflow

__all__ = ["NodeError", "Problem", "Workflow", "WorkflowError"]
