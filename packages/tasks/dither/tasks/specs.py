"""Component specs of this package, five tasks and their data, and the commands of the tasks."""

from typing import Any

from dither.registry import Spec, hookimpl

from .bubble_diagram.specs import BubbleDiagram, JsonPlans, PlanFiles, ProceduralPlans
from .dna_sequence.specs import DHSSequences, DnaSequence, PlantedMotifs, SequenceFile
from .get_region.data_specs import (
    HumanDHS,
    PreparedRegions,
    RegionArrays,
    RegionFile,
    RegionStore,
    RegionStores,
    ScannedRegions,
)
from .get_region.specs import GetRegion
from .images.specs import Digits, ImageArrays, ImageFolder, Images, TorchvisionFeatures
from .language_model.data.specs import (
    ConvertedText,
    MarkovText,
    Mixture,
    PromptResponse,
    Shakespeare,
    ShardFolder,
    StdlibText,
    TextFiles,
)
from .language_model.specs import LanguageModel
from .rewards import IdShare

__all__ = ["register_commands", "register_components"]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Return the tasks and their data components."""
    return [
        BubbleDiagram,
        ConvertedText,
        DHSSequences,
        Digits,
        DnaSequence,
        GetRegion,
        HumanDHS,
        IdShare,
        ImageArrays,
        ImageFolder,
        Images,
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
        RegionStores,
        ScannedRegions,
        SequenceFile,
        Mixture,
        Shakespeare,
        ShardFolder,
        PromptResponse,
        StdlibText,
        TextFiles,
        TorchvisionFeatures,
    ]


@hookimpl
def register_commands(app: Any, engine: Any) -> None:
    """Add the commands of the tasks. They are imported when help or one of them is requested."""
    from .bubble_diagram import commands as bubble_diagram
    from .get_region import commands as get_region
    from .language_model import commands as language_model

    for task in (get_region, bubble_diagram, language_model):
        task.add_commands(app, engine)
