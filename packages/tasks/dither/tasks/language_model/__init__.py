"""Language modelling: text by bytes, characters or byte pairs."""
