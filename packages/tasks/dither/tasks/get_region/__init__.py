"""Regions of a genome: motifs and accessibility along the chromosome.

After GET: Fu et al. 2025, "A foundation model of transcription across human cell types", Nature.
"""

__all__: list[str] = []
