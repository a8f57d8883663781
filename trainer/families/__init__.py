"""Model families: one file each, over what they share; one row in FAMILIES of `trainer/flow.py`."""
