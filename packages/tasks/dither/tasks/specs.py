"""Component specs of this package: four tasks and their data."""

from dither.registry import Spec, hookimpl

from .bubble_diagram.specs import BubbleDiagram, JsonPlans, PlanFiles, ProceduralPlans
from .dna_sequence.specs import DHSSequences, DnaSequence, PlantedMotifs
from .get_region.data_specs import (
    HumanDHS,
    PreparedRegions,
    RegionArrays,
    RegionFile,
    RegionStore,
    ScannedRegions,
)
from .get_region.specs import GetRegion
from .language_model.data.specs import (
    ConvertedText,
    MarkovText,
    PromptResponse,
    Shakespeare,
    ShardFolder,
    StdlibText,
    TextFiles,
)
from .language_model.specs import LanguageModel

__all__ = ["register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Return the tasks and their data components."""
    return [
        BubbleDiagram,
        ConvertedText,
        DHSSequences,
        DnaSequence,
        GetRegion,
        HumanDHS,
        JsonPlans,
        LanguageModel,
        MarkovText,
        PlanFiles,
        PlantedMotifs,
        PreparedRegions,
        ProceduralPlans,
        RegionArrays,
        RegionFile,
        RegionStore,
        ScannedRegions,
        Shakespeare,
        ShardFolder,
        PromptResponse,
        StdlibText,
        TextFiles,
    ]
