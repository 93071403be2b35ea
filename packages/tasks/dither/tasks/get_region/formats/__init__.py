"""Regions as other programs keep them: get_model's zarr stores and folders, matrices with BED files, AnnData."""
