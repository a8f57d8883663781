"""Learning from pairs of pictures that are there already: the one that was chosen, and the one that was rejected."""
