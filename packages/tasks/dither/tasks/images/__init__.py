"""Images of one size with class labels: data, metrics in features of a classifier, pictures."""
