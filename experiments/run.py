"""`python -m experiments.run EXPERIMENT`: the same as `dither run EXPERIMENT`; every other verb works here too."""

import sys

if __name__ == "__main__":
    try:
        from dither.engine.cli import main
    except ImportError as error:
        sys.exit(
            f"dither is not installed ({error}); run: python -m pip install -r requirements.txt"
        )
    sys.exit(main(verb="run"))
