"""Plugins under torchrun: all ranks find the same components, including those of a plugin file."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RANK = """
import sys, pathlib, torch, torch.distributed as dist
from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
dist.init_process_group("gloo")
torch.manual_seed(0)
loaded = load_experiment(pathlib.Path(sys.argv[1]))
model = Diffusion.build(loaded.experiment).model
total = torch.tensor([sum(p.double().sum().item() for p in model.parameters())])
both = [torch.zeros_like(total) for _ in range(2)]
dist.all_gather(both, total)
names = sorted(report.name for report in loaded.plugins.active)
pathlib.Path(sys.argv[2] + str(dist.get_rank())).write_text(f"{both[0].item() == both[1].item()} {names}")
dist.destroy_process_group()
"""
SCHEDULE = """
from typing import ClassVar
import torch
from dither.registry import hookimpl
from dither.registry.flow import Noise
from dither.registry.kinds import ScheduleSpec

class Square(ScheduleSpec):
    '''alpha = 1 - 0.999 t^2.'''
    name: ClassVar[str] = "square"
    def build(self):
        alpha = lambda t: 1 - 0.999 * t**2
        return lambda t: Noise(-torch.log(alpha(t)), 1.998 * t / alpha(t))

@hookimpl
def register_components():
    return [Square]
"""


def test_every_rank_loads_the_plugins(tmp_path):
    (tmp_path / "square.py").write_text(SCHEDULE)
    (tmp_path / "rank.py").write_text(RANK)
    base = ROOT / "experiments" / "bubble_diagram" / "quick.toml"
    data = '{ use = "procedural-plans", train = 8, valid = 4, test = 4 }'
    (tmp_path / "exp.toml").write_text(
        f'extends = "{base}"\nplugins = ["./square.py"]\ntask = {{ use = "bubble-diagram", data = {data} }}\n'
        'process = { use = "absorbing", schedule = "square" }\n'
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(tmp_path / "rank.py"), str(tmp_path / "exp.toml"), str(tmp_path / "result")]
    done = subprocess.run([*launch, *script], capture_output=True, text=True, timeout=200, check=False)
    expected = "True ['core-blocks', 'embeddings', 'engine', 'losses', 'processes', 'square', 'tasks']"
    for rank in range(2):
        result = tmp_path / f"result{rank}"
        assert result.is_file(), done.stderr
        assert result.read_text() == expected
