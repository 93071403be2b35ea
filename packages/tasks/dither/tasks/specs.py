"""The menu of this package: three tasks and their data."""

from dither.registry import Spec, hookimpl

from .bubble_diagram.specs import BubbleDiagram, JsonPlans, PlanFiles, ProceduralPlans
from .get_region.specs import GetRegion, HumanDHS, RegionFile
from .language_model.data_specs import ConvertedText, MarkovText, ShardFolder
from .language_model.specs import LanguageModel, Shakespeare, StdlibText, TextFiles

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer the tasks and their data."""
    return [
        BubbleDiagram,
        ConvertedText,
        GetRegion,
        HumanDHS,
        JsonPlans,
        LanguageModel,
        MarkovText,
        PlanFiles,
        ProceduralPlans,
        RegionFile,
        Shakespeare,
        ShardFolder,
        StdlibText,
        TextFiles,
    ]
