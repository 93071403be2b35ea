"""SVG, PNG, GIF and HTML plots of diagrams and sampling trajectories."""
