"""Component specs of this package: three tasks and their data."""

from dither.registry import Spec, hookimpl

from .bubble_diagram.specs import BubbleDiagram, JsonPlans, PlanFiles, ProceduralPlans
from .get_region.data_specs import HumanDHS, PreparedRegions, RegionArrays, RegionFile, RegionStore
from .get_region.specs import GetRegion
from .language_model.data.pairs import PromptResponse
from .language_model.data.specs import ConvertedText, MarkovText, Shakespeare, ShardFolder, StdlibText, TextFiles
from .language_model.specs import LanguageModel

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Return the tasks and their data components."""
    return [
        BubbleDiagram,
        ConvertedText,
        GetRegion,
        HumanDHS,
        JsonPlans,
        LanguageModel,
        MarkovText,
        PlanFiles,
        PreparedRegions,
        ProceduralPlans,
        RegionArrays,
        RegionFile,
        RegionStore,
        Shakespeare,
        ShardFolder,
        PromptResponse,
        StdlibText,
        TextFiles,
    ]
