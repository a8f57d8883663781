"""Heatmaps, curves, grids and videos."""
