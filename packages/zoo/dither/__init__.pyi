# For editors that read a checkout: once one folder `dither` has an __init__, pyright looks into no other without one.
# Neither Python nor a wheel takes it; the package itself is in packages/engine.
from dither.engine import Diffusion as Diffusion
from dither.engine import Experiment as Experiment
from dither.engine import compare as compare
from dither.engine import draw as draw
from dither.engine import evaluate as evaluate
from dither.engine import load as load
from dither.engine import load_experiment as load_experiment
from dither.engine import sample as sample
from dither.engine import save_experiment as save_experiment
from dither.engine import train as train
from dither.engine.runs.api import components as components
from dither.registry.config.errors import Refused as Refused

__version__: str
list = components
