"""Flow matching: linear paths and their ODE for features, and jumps along mixture paths for tokens."""
