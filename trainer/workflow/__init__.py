"""A graph in ComfyUI's API format: read, checked and run without ComfyUI, and with its semantics."""

from .problem import Problem, WorkflowError
from .running import NodeError, Workflow

__all__ = ["NodeError", "Problem", "Workflow", "WorkflowError"]
