"""Where the time of a training step goes, and what share of the machine's peak it uses."""
