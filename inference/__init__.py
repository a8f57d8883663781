"""Pictures from what was trained."""
