"""Formats of regions: zarr stores and folders of get_model, matrices with BED files, AnnData."""
