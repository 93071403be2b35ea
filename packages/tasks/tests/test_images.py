"""Images: reading of foreign files, scaling, metrics with known values, pictures and exports."""

import io
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from dither.registry import default_catalog
from dither.registry.config.errors import Refused
from dither.registry.kinds import DataSpec
from dither.tasks.feature_distances import (
    PART,
    frechet_distance,
    kernel_distance,
    precision_recall,
)
from dither.tasks.images.files import MAX_PIXELS, open_arrays, read_image
from dither.tasks.images.metrics import nearest
from dither.tasks.images.task import BORDER, SquaredErrors, _tiles

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, as torchvision standardises images."""
RED, BLUE = (255, 0, 0), (0, 0, 255)


def spec_of(data="digits", **options):
    return default_catalog().parse("task", {"use": "images", "data": data, **options})


@pytest.fixture(scope="module")
def digits():
    return spec_of().build()


@pytest.fixture
def folder(tmp_path):
    """Two classes of PNG and JPEG, wider than high; the left half is red, the right one blue."""
    image = Image.new("RGB", (24, 12), RED)
    image.paste(BLUE, (12, 0, 24, 12))
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for n in range(6):
            image.save(tmp_path / name / f"{n}.{('png', 'jpg')[n % 2]}")
    return tmp_path


def misfits(task):
    return [(misfit.code, misfit.path) for misfit in task.check()]


def test_splits_are_disjoint_and_standardised(digits):
    seen = set()
    for split in ("train", "valid", "test"):
        clean = digits.batch(split, range(digits.size(split)))
        assert clean.x0.shape[1:] == (64, 1)
        if split == "train":
            assert clean.x0.mean().abs() < 1e-5
            assert (clean.x0.std() - 1).abs() < 1e-3
        seen |= {x.numpy().tobytes() for x in clean.x0}
    assert len(seen) == 1797
    assert digits.space.grid == (8, 8)
    assert [str(c) for c in digits.space.conditions[0].labels] == list("0123456789")


def test_range_is_minus_one_to_one_and_flips_are_mirror_images():
    task = spec_of(scale="range", flip=True).build()
    count = task.size("train") // 2
    clean = task.batch("train", [3, count + 3])
    assert task.batch("train", range(count)).x0.aminmax() == (-1.0, 1.0)
    image, mirrored = clean.x0.view(2, 8, 8)
    assert torch.equal(mirrored, image.flip(1))
    assert clean.cond["label"][0] == clean.cond["label"][1]
    assert task.size("valid") == 449
    with pytest.raises(IndexError):
        task.batch("train", [2 * count])


def test_a_folder_is_cropped_and_its_folders_are_classes(folder):
    spec = spec_of({"use": "image-folder", "path": str(folder), "size": 8})
    assert not misfits(spec)
    task = spec.build()
    assert task.space.grid == (8, 8)
    assert task.space.conditions[0].labels == ("cat", "dog")
    clean = task.batch("train", range(task.size("train")))
    (first, *_) = task.decode(clean.x0, clean)
    # The centre of 16 x 8 pixels.
    assert np.abs(first[:, :3] - RED).max() < 40
    assert np.abs(first[:, 5:] - BLUE).max() < 40


@pytest.mark.parametrize("name", ["notes.txt", "model.pkl", "clip.gif", "a.png/"])
def test_other_files_in_a_class_are_named(folder, name):
    path = folder / "dog" / name
    path.mkdir() if name.endswith("/") else path.write_bytes(b"x")
    (misfit,) = spec_of({"use": "image-folder", "path": str(folder)}).check()
    assert (misfit.code, misfit.path) == ("unreadable-file", ("data", "path"))
    assert str(path) in misfit.message


def gif():
    out = io.BytesIO()
    Image.new("P", (4, 4)).save(out, "GIF")
    return out.getvalue()


def huge():
    """A PNG whose header declares more pixels than are accepted, as if it were whole."""
    out = io.BytesIO()
    Image.new("L", (4, 4)).save(out, "PNG")
    data = bytearray(out.getvalue())
    side = int(MAX_PIXELS**0.5) + 1
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("content", [b"", b"no image", gif(), huge()])
def test_damaged_foreign_and_huge_images_are_refused_by_name(tmp_path, content):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(Refused) as error:
        read_image(path, 8, grey=True)
    assert error.value.problems[0].code == "unreadable-file"
    assert str(path) in error.value.problems[0].message


def test_a_header_cut_short_is_refused(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((8, 4, 4)))
    path.write_bytes(path.read_bytes().replace(b"(8, 4, 4)", b"(8, 4, 4 "))
    with pytest.raises(Refused) as error:
        open_arrays(path)
    assert error.value.codes == ["damaged-file"]


def test_sixteen_bits_of_grey_are_scaled(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(path)
    assert (read_image(path, 4, grey=True) == 40_000 >> 8).all()
    assert (read_image(path, 4, grey=False) == 40_000 >> 8).all()


def test_damaged_metadata_are_refused(tmp_path):
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x010E] = "x" * 40
    exif[0x0112] = 6
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    # The text is now the width of the image, which Pillow cannot write again.
    content = path.read_bytes()
    assert b"\x01\x0e\x00\x02" in content
    path.write_bytes(content.replace(b"\x01\x0e\x00\x02", b"\x01\x00\x00\x02"))
    with pytest.raises(Refused) as error:
        read_image(path, 8, grey=True)
    assert error.value.codes == ["unreadable-file"]


def test_latents_keep_their_axes(tmp_path):
    path = tmp_path / "latents.npz"
    images = np.arange(10 * 3 * 4 * 6, dtype=np.float32).reshape(10, 3, 4, 6)
    np.savez(path, x=images, y=np.arange(10) % 2)
    task = spec_of({"use": "image-arrays", "path": str(path), "layout": "NCHW"}).build()
    assert task.space.grid == (4, 6)
    clean = task.batch("valid", [0])
    (image,) = task.decode(clean.x0, clean)
    (row,) = np.flatnonzero(np.isclose(images[:, 0, 0, 0], image[0, 0, 0]))
    assert np.allclose(image.transpose(2, 0, 1), images[row], atol=0.1)
    assert clean.cond["label"] == row % 2
    other = {"use": "image-arrays", "path": str(path), "shape": [1, 2, 3]}
    assert misfits(spec_of(other)) == [("wrong-shape", ("data", "shape"))]


def arrays(path, kind):
    images = np.zeros((8, 4, 4), np.uint8)
    if kind == "objects":
        np.savez(path, images=np.array([{}] * 8, dtype=object))
    elif kind == "no images":
        np.savez(path, pictures=images)
    elif kind == "labels":
        np.savez(path, images=images, labels=np.arange(7))
    elif kind == "large label":
        np.savez(path, images=images, labels=np.full(8, 9))
    elif kind == "bomb":
        np.savez(path, images=np.zeros((8, 32, 32), np.uint8))
    elif kind == "flipped bits":
        np.savez_compressed(path, images=np.arange(256).reshape(4, 8, 8))
        content = path.read_bytes()
        start = len(content) // 8
        path.write_bytes(content[:start] + b"\xff" * 9 + content[start + 9 :])
    elif kind == "no array":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images", b"text")
    elif kind == "declares more":
        content = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 4, 4)}
        np.lib.format.write_array_header_1_0(content, shape)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", content.getvalue())
    elif kind == "safetensors":
        save_file({"images": images}, path)


@pytest.mark.parametrize(
    "kind",
    [
        "objects",
        "no images",
        "labels",
        "large label",
        "safetensors",
        "missing",
        "bomb",
        "flipped bits",
        "no array",
        "declares more",
    ],
)
def test_arrays_that_are_none_are_refused_by_name(tmp_path, kind, monkeypatch):
    path = tmp_path / "x.npz"
    monkeypatch.setattr("dither.tasks.prepared.arrays.max_expanded", lambda size: 4000)
    arrays(path, kind)
    with pytest.raises(Refused) as error:
        open_arrays(path)
    assert str(path) in error.value.problems[0].message


def test_frechet_distance_of_normal_distributions():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((50_000, 2))
    b = rng.standard_normal((50_000, 2)) * (2, 3) + (1, 0)
    # |mean|^2 + sum of (std - std)^2
    assert frechet_distance(a, b) == pytest.approx(1 + 1 + 4, rel=0.05)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    # A covariance of as many pixels would take 20 GB.
    wide = rng.standard_normal((4, 50_000))
    assert frechet_distance(wide, wide + 1) == pytest.approx(50_000)


def test_kernel_distance_is_the_unbiased_sum_over_pairs():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 3))
    b = rng.standard_normal((4, 3)) + 1

    def mean(xs, ys, *, apart):
        values = []
        for i, x in enumerate(xs):
            for j, y in enumerate(ys):
                if not (apart and i == j):
                    values.append((x @ y / 3 + 1) ** 3)
        return np.mean(values)

    expected = mean(a, a, apart=True) + mean(b, b, apart=True)
    expected -= 2 * mean(a, b, apart=False)
    assert kernel_distance(a, b) == pytest.approx(expected, rel=1e-12)


def test_precision_and_recall_of_known_sets():
    rng = np.random.default_rng(0)
    both = rng.standard_normal((200, 2))
    far = both + 100
    assert precision_recall(both, both) == (1, 1)
    assert precision_recall(far, both) == (0, 0)
    # Half of the images are far from any sample.
    images = np.concatenate([both, far])
    assert precision_recall(both, images) == (1, 0.5)
    assert nearest(far + 0.001, images).tolist() == list(range(200, 400))


def test_metrics_tell_images_from_noise_and_wrong_labels(digits):
    clean = digits.batch("train", range(200))
    real = digits.sample_metrics(clean.x0, clean)
    assert real["accuracy"] > 0.9
    noise = digits.sample_metrics(torch.randn_like(clean.x0), clean)
    assert noise["accuracy"] < 0.4
    assert noise["frechet"] > 5 * real["frechet"]
    assert noise["kid"] > 5 * abs(real["kid"])
    assert noise["precision"] < real["precision"]
    wrong = dict(clean.cond, label=(clean.cond["label"] + 1) % 10)
    other = digits.sample_metrics(clean.x0, type(clean).of(clean.x0, **wrong))
    assert other["accuracy"] < 0.1
    floor = digits.baselines("valid", 200)
    assert floor["sample frechet/floor"] == pytest.approx(real["frechet"], rel=0.7)
    assert floor["squared_error/mean image"] == pytest.approx(0.55, abs=0.1)


def test_metrics_do_not_depend_on_batches(digits):
    clean = digits.batch("valid", range(8))
    pred = type("Prediction", (), {"x0": clean.x0 + 2})()
    target = torch.ones_like(clean.x0, dtype=torch.bool)
    target[:, 32:] = False
    noised = type("Noised", (), {"target_mask": target})()
    metrics = SquaredErrors()
    metrics.update(clean, noised, pred, None)
    assert metrics.compute()["squared_error"] == pytest.approx(4)


def test_pictures_and_exports(digits, tmp_path):
    clean = digits.like(30, 0)
    samples = digits.batch("train", range(30)).x0
    grid, close = digits.plots(samples, clean)
    with Image.open(io.BytesIO(grid.png)) as image:
        # 10 columns and 3 rows of 48 pixels with borders
        assert image.size == (520, 156)
    with Image.open(io.BytesIO(close.png)) as image:
        pairs = np.asarray(image)
    # Training images are their own nearest ones.
    assert np.array_equal(pairs[:52], pairs[52:])
    (film,) = digits.trajectory_plots(torch.stack([0 * samples, samples]), clean)
    with Image.open(io.BytesIO(film.gif)) as image:
        assert image.n_frames >= 2

    files, _ = digits.export(samples, clean, "png", tmp_path / "png")
    assert len(files) == 30
    with Image.open(files[3]) as image:
        pixels = np.asarray(image.convert("L")) / 255 * 16
    assert np.abs(pixels - digits.decode(samples, clean)[3, :, :, 0]).max() < 0.1
    ((path,), _) = digits.export(samples, clean, "npz", tmp_path / "npz")
    again = spec_of({"use": "image-arrays", "path": str(path)}).build()
    assert again.space.grid == (8, 8)


def test_tiles_are_in_rows_and_the_last_row_is_filled_with_white():
    images = np.zeros((3, 64, 64, 3), np.uint8)
    images[0, 0, 0] = 10
    images[1, 0, 0] = 20
    images[2, 0, 0] = 30
    grid = _tiles(images, 2)
    side = 64 + 2 * BORDER
    assert grid.shape == (2 * side, 2 * side, 3)
    corners = grid[BORDER::side, BORDER::side, 0]
    assert corners.tolist() == [[10, 20], [30, 255]]


class Halves(DataSpec):
    """Mean of the left and the right half of an image."""

    name = "halves"
    gives = "image-features"

    def build(self):
        def halves(images):
            assert len(images) <= PART
            assert images.dtype == np.float32
            assert (images.min(), images.max()) == (0, 1)
            return images.reshape(len(images), 8, 2, 4).mean((1, 3))

        return halves


def test_distances_are_in_the_features_of_a_component(digits):
    task = spec_of(extractor=Halves()).build()
    clean = task.batch("train", range(100))
    metrics = task.sample_metrics(clean.x0, clean)

    def halves(images):
        return images.reshape(len(images), 8, 2, 4).mean((1, 3), dtype=float) / 16

    train, valid = (task.images.images[split] for split in ("train", "valid"))
    expected = frechet_distance(halves(train[:100]), halves(valid))
    assert metrics["frechet"] == pytest.approx(expected, rel=1e-4)
    assert metrics["accuracy"] == digits.sample_metrics(clean.x0, clean)["accuracy"]


def test_features_of_another_shape_and_of_another_type_are_refused():
    class Pixels(Halves):
        """Features that are not vectors."""

        name = "pixels"

        def build(self):
            return lambda images: images

    with pytest.raises(ValueError, match="expected N F"):
        _ = spec_of(extractor=Pixels()).build().reference
    assert misfits(spec_of(extractor="digits")) == [("wrong-kind", ("extractor",))]
    missing = {"use": "torchvision", "weights": "missing.pth"}
    misfit = ("file-not-found", ("extractor", "weights"))
    assert misfit in misfits(spec_of(extractor=missing))


def test_features_of_torchvision_are_the_input_of_the_last_layer(tmp_path):
    models = pytest.importorskip("torchvision.models")
    path = tmp_path / "resnet.pth"
    model = models.resnet18().eval()
    torch.save(model.state_dict(), path)
    options = {"use": "torchvision", "model": "resnet18", "weights": str(path)}
    features = default_catalog().parse("data", options | {"size": 32}).build()
    image = torch.rand(2, 32, 32, 3)
    last = []
    model.fc.register_forward_hook(lambda layer, x, y: last.append(x[0]))
    with torch.no_grad():
        model((image - torch.tensor(MEAN)).div(torch.tensor(STD)).permute(0, 3, 1, 2))
    assert np.allclose(features(image.numpy()), last[0], atol=1e-5)
