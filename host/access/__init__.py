"""What a workflow may read, reach, fetch and run: one policy, widened by the user alone (docs/security.md)."""
