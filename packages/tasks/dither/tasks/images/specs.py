"""Specs of the task images and its data. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from dither.registry.contracts.spaces import Condition, FeatureSpace
from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.spec.base import PathStr, Slot, named
from dither.registry.spec.misfit import Misfit, below

from ..missing_library import missing_libraries, require_extra
from .facts import ImageFacts

if TYPE_CHECKING:
    from ..feature_distances import FeatureExtractor
    from .data import Images as ImageData
    from .task import ImageTask

__all__ = ["Digits", "ImageArrays", "ImageFolder", "Images", "TorchvisionFeatures"]


class Images(TaskSpec):
    """Images, or latents of an autoencoder, with their class as a condition.

    A source is a data component with `gives = "images"` whose `build` returns `Images`, and whose
    `facts` returns `ImageFacts`.
    """

    name = "images"
    hub_task: ClassVar[str] = "unconditional-image-generation"
    # Images have one size.
    bucketed: ClassVar[bool | None] = False
    headline: ClassVar[tuple[str, ...]] = ("sample/accuracy", "sample/frechet")
    higher: ClassVar[tuple[str, ...]] = ("accuracy*", "precision", "recall")
    lower: ClassVar[tuple[str, ...]] = ("frechet", "kid")
    legend: ClassVar[str] = (
        "frechet, kid, precision and recall compare samples with validation images in the features "
        "of the task; accuracy is that of a classifier of the classes. The floor has training "
        "images in place of samples."
    )
    explanations: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"floor": "as many training images of the same classes in place of samples"}
    )
    exports: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "png": "CLASS/NUMBER.png: a file for each sample",
            "npz": "samples.npz: arrays images (N H W C, in the units of the data) and labels",
        }
    )
    data: Slot[DataSpec] = named("digits")
    """Source of the images."""
    scale: Literal["standardise", "range"] = "standardise"
    """Scale of samples: mean 0 and standard deviation 1 of each channel of the training split, or
    the range of the training split to -1 .. 1, which loss "hybrid" requires."""
    flip: bool = False
    """Add the mirror image of every training image, which doubles the number of training samples."""
    features: Literal["classifier", "pixels"] = "classifier"
    """Features of distances: the hidden layer of a small classifier that is trained on the test
    split, or the values themselves."""
    extractor: Slot[DataSpec] | None = None
    """Features of distances in place of `features`: a data component with `gives =
    "image-features"`, whose `build` returns a function of images `N H W C` that returns `N F`.
    Brightnesses are from 0 to 1, latents in the units of the data."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source or features of another type, and their own problems."""
        yield from below("data", self.data.check_gives("images"))
        yield from below("data", self.data.check())
        if self.extractor is not None:
            yield from below("extractor", self.extractor.check_gives("image-features"))
            yield from below("extractor", self.extractor.check())

    def space(self) -> FeatureSpace:
        """Return one position per pixel, one column per channel, and the condition "label"."""
        facts: ImageFacts = self.data.facts()
        conditions: tuple[Condition, ...] = ()
        if facts.classes:
            conditions = (Condition("label", len(facts.classes), facts.classes),)
        return FeatureSpace(
            facts.rows * facts.columns,
            facts.channels,
            conditions=conditions,
            standardised=True,
            grid=(facts.rows, facts.columns),
        )

    def build(self) -> ImageTask:
        require_extra("images", self.name, ("task",))
        from .task import ImageTask

        images: ImageData = self.data.build()
        extractor = self.extractor
        return ImageTask(
            images,
            self.space(),
            scale=self.scale,
            flip=self.flip,
            features=self.features if extractor is None else extractor.build(),
        )


class _Held(DataSpec):
    """A source that is divided at random into three splits."""

    gives: ClassVar[str] = "images"
    # A fifth is left for training at least.
    held: float = Field(0.25, gt=0, le=0.4)
    """Share of the images in the validation split, and in the test split."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the division."""

    def division(self) -> dict[str, Any]:
        """Return the options of the division."""
        return self.model_dump(include={"held", "seed"})


class Digits(_Held):
    """1,797 handwritten digits of 8 x 8 pixels, part of scikit-learn (Alpaydin and Kaynak, 1998)."""

    name = "digits"

    def facts(self) -> ImageFacts:
        # scikit-learn, which has the images, must not be imported for a listing.
        return ImageFacts(8, 8, 1, tuple("0123456789"))

    def build(self) -> ImageData:
        require_extra("images", self.name, ("task", "data"))
        from .data import read_digits

        return read_digits(**self.division())


class ImageFolder(_Held):
    """PNG and JPEG files in one folder per class."""

    name = "image-folder"
    path: PathStr = Field(min_length=1)
    """The folder; its folders are the classes. Every file in them must be .png, .jpg or .jpeg."""
    size: int = Field(32, ge=1, le=1024)
    """Rows and columns: the shorter side is scaled to this, the centre of the longer one is kept."""
    grey: bool = False
    """Read one channel of grey instead of red, green and blue."""

    def check(self) -> Iterator[Misfit]:
        """Yield a folder without classes, and files that are not images."""
        from .files import folder_problems

        for problem in folder_problems(self._folder()):
            yield problem.as_misfit(("path",))

    def facts(self) -> ImageFacts:
        from .files import class_folders

        names = tuple(folder.name for folder in class_folders(self._folder()))
        return ImageFacts(self.size, self.size, 1 if self.grey else 3, names)

    def build(self) -> ImageData:
        require_extra("images", self.name, ("task", "data"))
        from .data import read_folder

        return read_folder(
            self._folder(), size=self.size, grey=self.grey, **self.division()
        )

    def _folder(self) -> Path:
        return Path(self.path).expanduser()


class ImageArrays(_Held):
    """Arrays of images or latents: a .npy file of images, or an .npz file with labels, too."""

    name = "image-arrays"
    path: PathStr = Field(min_length=1)
    """The file. An .npz file has the arrays images (or x) and labels (or y): integers from 0, one
    per image."""
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    """Order of the axes: images, rows, columns, channels; latents usually have NCHW. Without
    channels, images have three axes."""
    shape: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=3, max_length=3
    )
    """Rows, columns and channels that the file must have, so that a model can be described without
    it."""
    classes: int | None = Field(None, ge=1, le=1_000_000)
    """Number of classes. Defaults to the largest label + 1."""

    def check(self) -> Iterator[Misfit]:
        """Yield a file that cannot be read, or is not as stated."""
        from dither.registry.config.errors import Refused

        try:
            facts = self._read_facts()
        except Refused as refused:
            for problem in refused.problems:
                yield problem.as_misfit(("path",))
            return
        if self.shape is not None and list(facts[:3]) != self.shape:
            message = f"images of {self.path} have the shape {facts[:3]}"
            yield Misfit(message, ("shape",), code="wrong-shape")
        if self.classes is not None and len(facts.classes) > self.classes:
            message = f"labels of {self.path} are of {len(facts.classes)} classes"
            yield Misfit(message, ("classes",), code="out-of-range")

    def facts(self) -> ImageFacts:
        # The file may be on another machine than the one that describes the model.
        if self.shape is not None and self.classes is not None:
            rows, columns, channels = self.shape
            names = tuple(map(str, range(self.classes)))
            return ImageFacts(rows, columns, channels, names)
        facts = self._read_facts()
        if self.classes is not None:
            return facts._replace(classes=tuple(map(str, range(self.classes))))
        return facts

    def _read_facts(self) -> ImageFacts:
        from .files import array_facts

        return array_facts(Path(self.path).expanduser(), self.layout)

    def build(self) -> ImageData:
        from .data import read_arrays

        path = Path(self.path).expanduser()
        classes = self.facts().classes
        return read_arrays(path, self.layout, classes, **self.division())


class TorchvisionFeatures(DataSpec):
    """Input of the last layer of a classifier of torchvision: features of images.

    Frechet distances in those of Inception are near published ones, but not comparable: these use a
    port of other weights.
    """

    name = "torchvision"
    gives: ClassVar[str] = "image-features"
    model: str = "inception_v3"
    """A name of `torchvision.models.list_models`."""
    weights: PathStr = Field(min_length=1)
    """File of its weights, as torchvision publishes them."""
    size: int = Field(299, ge=1, le=1024)
    """Rows and columns to which images are scaled."""

    def check(self) -> Iterator[Misfit]:
        """Yield a missing library, and a missing file."""
        for problem in missing_libraries("torchvision", self.name):
            yield problem.as_misfit()
        if not Path(self.weights).expanduser().is_file():
            message = f"{self.weights} is not a file"
            yield Misfit(message, ("weights",), code="file-not-found")

    def build(self) -> FeatureExtractor:
        require_extra("torchvision", self.name)
        from .torchvision_features import load_features

        return load_features(self.model, Path(self.weights).expanduser(), self.size)
