"""sigma(t), the noise added up from 0 to t, and its derivative: one family for every process."""
