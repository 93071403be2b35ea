"""`python -m dither.engine.cli`, for torchrun."""

from . import main

raise SystemExit(main())
