"""The doors of a model: what comes in (tokens, graphs, features, positions, noise level) and what goes out (heads).

`specs` is the menu.
"""

__all__: list[str] = []
