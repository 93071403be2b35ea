"""Plugin discovery, loading, policy and the component catalogue."""
