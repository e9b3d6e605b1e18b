"""Folders and tables of images: decoded once, unreadable ones reported."""

from __future__ import annotations

import csv
import errno
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image, ImageFile

from apmax.data.images import decoding
from apmax.data.images.augmentation import LARGE_IMAGES, SMALL_IMAGES
from apmax.data.images.decoding import Decoder, WriteChunk, decode_all, image_cache_key, write_chunks
from apmax.data.images.reading import augment_for, image_dataset, read_csv, read_folder
from apmax.data.images.sets import HAM10000_FILE, IMAGE_SETS, ham10000, melanoma
from apmax.data.reading import UnreadableRow

REAL = Path(os.environ.get("APMAX_DATA", "/nowhere"))


def flat(path, value, size=(20, 16), **options):
    """Write an image of one colour, whose red channel is `value`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), (value, 100, 50), np.uint8)).save(path, **options)
    return str(path)


def some_files(folder, count=5):
    return [flat(folder / f"{number}.png", 10 * number) for number in range(count)]


def broken(path):
    """Write a JPEG that breaks off."""
    flat(path, 90, size=(200, 200), quality=95)
    path.write_bytes(path.read_bytes()[:-100])
    return str(path)


def reds(store):
    return [int(image[0, 0, 0]) for image in store.pixels]


def test_images_are_decoded_in_order_and_mapped(tmp_path):
    found = decode_all(some_files(tmp_path), 8, cache=tmp_path / "cache")
    assert found.store.pixels.shape == (5, 8, 8, 3)
    assert reds(found.store) == [0, 10, 20, 30, 40]
    assert isinstance(found.store.pixels, np.memmap)


def test_own_transform_replaces_the_normalisation(tmp_path):
    import torch

    for name in ("yes", "no"):
        flat(tmp_path / "images" / name / "a.png", 40)

    def transform(pixels):
        return torch.from_numpy(pixels[:2, :2].transpose(2, 0, 1) * 1.0)

    data, _ = read_folder(tmp_path / "images", "yes", size=8, cache=tmp_path, transform=transform)
    image, _ = data[0]
    assert image.shape == (3, 2, 2)
    assert image[0, 0, 0] == 40


def test_second_epoch_decodes_nothing(tmp_path, monkeypatch):
    files = some_files(tmp_path)
    decode_all(files, 8, cache=tmp_path / "cache")
    monkeypatch.setattr(Decoder, "__call__", None)
    assert reds(decode_all(files, 8, cache=tmp_path / "cache").store) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_chunk_is_written_to_its_place(tmp_path, monkeypatch, workers):
    files = some_files(tmp_path, 9)
    monkeypatch.setattr(decoding, "IMAGES_PER_CHUNK", 2)
    found = decode_all(files, 8, cache=tmp_path / "cache", workers=workers)
    assert reds(found.store) == [10 * number for number in range(9)]
    assert (found.store.pixels == found.store.pixels[:, :1, :1]).all()


def test_key_depends_on_files_size_and_version(tmp_path, monkeypatch):
    files = some_files(tmp_path)
    key = image_cache_key(files, Decoder(8))
    assert key == image_cache_key(files, Decoder(8))
    others = [
        image_cache_key(files[::-1], Decoder(8)),
        image_cache_key(files, Decoder(9)),
        image_cache_key(files, Decoder(8, "crop")),
    ]
    os.utime(files[0], ns=(1, 1))
    others.append(image_cache_key(files, Decoder(8)))
    Path(files[0]).unlink()
    others.append(image_cache_key(files, Decoder(8)))
    monkeypatch.setattr(decoding, "DECODER_VERSION", decoding.DECODER_VERSION + 1)
    others.append(image_cache_key(files, Decoder(8)))
    assert len({key, *others}) == 7


def test_changed_file_is_decoded_again(tmp_path):
    files = some_files(tmp_path)
    decode_all(files, 8, cache=tmp_path / "cache")
    flat(Path(files[2]), 200)
    os.utime(files[2], ns=(5, 5))
    assert reds(decode_all(files, 8, cache=tmp_path / "cache").store) == [0, 10, 200, 30, 40]


def test_unreadable_images_are_all_named(tmp_path):
    files = [
        *some_files(tmp_path),
        broken(tmp_path / "cut.jpg"),
        str(tmp_path / "gone.png"),
        str(tmp_path / "text.png"),
    ]
    (tmp_path / "text.png").write_text("no image")
    reasons = r".*cut.jpg' \(.*truncated.*gone.png' \(no such file\); .*text.png' \(cannot identify"
    with pytest.raises(ValueError, match="3 of 8 images cannot be read: " + reasons):
        decode_all(files, 8, cache=tmp_path / "cache")


def test_skipped_images_are_reported_and_the_rest_keeps_its_labels(tmp_path):
    files = some_files(tmp_path)
    files[1] = broken(tmp_path / "cut.jpg")
    labels = np.array([[1], [1], [0], [0], [1]], np.float32)
    data, report = image_dataset(files, labels, size=8, cache=tmp_path / "cache", on_error="skip")
    assert data.names == [files[row] for row in (0, 2, 3, 4)]
    assert data.labels.tolist() == [1, 0, 0, 1]
    assert [int(red) for red in data.store.take(data.places)[:, 0, 0, 0]] == [0, 20, 30, 40]
    assert [item.value for item in report.unreadable] == [files[1]]
    assert "cut.jpg" in report.lines()[0]


def test_no_readable_image_is_an_error_even_when_skipping(tmp_path):
    with pytest.raises(ValueError, match="1 of 1 images cannot be read"):
        decode_all([str(tmp_path / "gone.png")], 8, cache=tmp_path / "cache", on_error="skip")


def test_failed_build_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise MemoryError
        yield

    monkeypatch.setattr(decoding, "write_chunks", fails)
    with pytest.raises(MemoryError):
        decode_all(some_files(tmp_path), 8, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_full_disk_is_named_before_decoding(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(Decoder, "__call__", None)
    with pytest.raises(OSError, match="GB are needed for decoded images"):
        decode_all(some_files(tmp_path), 8, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def _decode(arguments):
    files, folder = arguments
    return reds(decode_all(files, 8, cache=folder).store)


@pytest.mark.slow
def test_concurrent_writers_leave_one_whole_cache(tmp_path):
    files = some_files(tmp_path)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(_decode, [(files, str(tmp_path / "cache"))] * 4)
    assert results == [[0, 10, 20, 30, 40]] * 4
    assert len(list((tmp_path / "cache").iterdir())) == 1


class Deadly(WriteChunk):
    def __call__(self, part):
        os._exit(1)


@pytest.mark.slow
def test_process_that_dies_is_an_error_and_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "IMAGES_PER_CHUNK", 2)
    with pytest.raises(Exception, match="process"):
        list(write_chunks(Deadly(Decoder(8), tmp_path / "x", 0), ["a"] * 8, workers=2))


def test_progress_is_shown_when_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    decode_all(some_files(tmp_path), 8, cache=tmp_path / "cache", progress=True)
    assert "decoding images" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA", "I;16"])
def test_every_mode_becomes_three_channels_of_8_bits(tmp_path, mode):
    grey = np.full((6, 6), 200, np.uint8)
    if mode == "I;16":
        image = Image.fromarray(np.full((6, 6), 200 * 256 + 7, np.uint16))
    else:
        image = Image.fromarray(grey).convert("RGB").convert(mode)
    image.save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"))
    pixels = Decoder(6)(next(tmp_path.iterdir()))
    assert pixels.shape == (6, 6, 3)
    assert pixels.dtype == np.uint8
    if mode != "1":
        # A palette has few colours.
        assert abs(int(pixels[3, 3, 0]) - 200) <= (5 if mode == "P" else 1)


def test_floating_image_is_refused_with_the_reason(tmp_path):
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="floating numbers"):
        Decoder(4)(tmp_path / "a.tif")


def test_rotated_photograph_is_set_upright(tmp_path):
    pixels = np.zeros((10, 20, 3), np.uint8)
    pixels[:, :10] = 255  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    upright = Decoder(8)(tmp_path / "a.png")
    assert upright[0].min() == 255
    assert upright[-1].max() == 0


def test_crop_takes_the_middle_and_stretch_takes_all(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert Decoder(10, "crop")(tmp_path / "a.png").min() == 255
    assert Decoder(10)(tmp_path / "a.png")[:, 0].max() == 0


def test_large_jpeg_is_close_to_its_exact_reduction(tmp_path):
    y, x = np.mgrid[0:512, 0:640]
    pixels = np.stack([x * 255 // 640, y * 255 // 512, 128 + 100 * np.sin(x / 40)], 2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    exact = np.asarray(Image.fromarray(pixels).resize((64, 64), Image.Resampling.BOX)).astype(int)
    assert np.abs(Decoder(64)(tmp_path / "a.jpg").astype(int) - exact).mean() < 2


def class_folders(root):
    flat(root / "benign" / "b.png", 2)
    flat(root / "benign" / "deep" / "a.JPG", 1)
    flat(root / "malignant" / "c.jpeg", 3)
    flat(root / "unsure" / "d.png", 4)
    (root / "benign" / "notes.txt").write_text("seen on Tuesday")
    (root / "benign" / ".hidden.png").write_text("")
    return root


def test_folder_per_class_is_read(tmp_path):
    data, report = read_folder(class_folders(tmp_path / "images"), "malignant", size=8, cache=tmp_path / "cache")
    assert [Path(name).name for name in data.names] == ["b.png", "a.JPG", "c.jpeg", "d.png"]
    assert data.labels.tolist() == [0, 0, 1, 0]
    assert [Path(name).name for name in report.ignored] == ["notes.txt"]
    assert "notes.txt" in report.lines()[0]


def test_several_classes_become_tasks(tmp_path):
    data, _ = read_folder(class_folders(tmp_path / "i"), ["unsure", "malignant"], size=8, cache=tmp_path / "cache")
    assert data.labels.tolist() == [[0, 0], [0, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("targets", "message"),
    [("maligant", "did you mean 'malignant'"), ("images", "its folders are 'benign', 'malignant', 'unsure'")],
)
def test_unknown_class_is_named(tmp_path, targets, message):
    with pytest.raises(ValueError, match=message):
        read_folder(class_folders(tmp_path / "images"), targets, size=8)


def test_folder_without_classes_or_images_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="has no images"):
        read_folder(tmp_path, "a")
    flat(tmp_path / "heap" / "1.png", 1)
    with pytest.raises(ValueError, match="folder per class"):
        read_folder(tmp_path / "heap", "a")
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_folder(tmp_path / "nowhere", "a")


def write_table(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_table_of_paths_is_read(tmp_path):
    some_files(tmp_path / "pictures", 4)
    rows = [["pictures/2.png", 1, ""], ["pictures/0.png", "", ""], ["pictures/1.png", 0, 1], ["pictures/3.png", "", 0]]
    write_table(tmp_path / "a.csv", ["path", "x", "y"], rows)
    data, report = read_csv(tmp_path / "a.csv", "x", size=8, cache=tmp_path / "cache")
    assert data.labels.tolist() == [1, 0]
    assert reds(data.store) == [20, 10]
    assert report.unmeasured == 2
    both, _ = read_csv(tmp_path / "a.csv", ["x", "y"], size=8, cache=tmp_path / "cache")
    assert np.array_equal(both.labels, [[1, np.nan], [0, 1], [np.nan, 0]], equal_nan=True)


def test_typing_error_in_an_option_is_refused(tmp_path):
    write_table(tmp_path / "a.csv", ["path", "x"], [["a.png", 1], ["b.png", 0]])
    with pytest.raises(TypeError, match="worker"):
        read_csv(tmp_path / "a.csv", "x", worker=3)


def melanoma_folder(root, *, inside="jpeg/train", ending="jpg", count=60):
    rows = []
    for number in range(count):
        flat(root / "melanoma" / inside / f"ISIC_{number:07d}.{ending}", number)
        rows.append([f"ISIC_{number:07d}", f"IP_{number % 7}", "female", int(number % 6 == 0)])
    write_table(root / "melanoma" / "train.csv", ["image_name", "patient_id", "sex", "target"], rows)


@pytest.mark.parametrize(("inside", "ending"), [("jpeg/train", "jpg"), ("train", "png")])
def test_melanoma_is_split_80_10_10_within_each_class(tmp_path, inside, ending):
    melanoma_folder(tmp_path, inside=inside, ending=ending)
    parts = melanoma(tmp_path, size=16, cache=tmp_path / "cache")
    assert [len(part) for part in (parts.train, parts.valid, parts.test)] == [48, 6, 6]
    assert [int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)] == [8, 1, 1]
    names = [Path(name).stem for part in (parts.train, parts.valid, parts.test) for name in part.names]
    assert len(set(names)) == 60
    labels = [label for part in (parts.train, parts.valid, parts.test) for label in part.labels.tolist()]
    assert all(label == (int(name[-7:]) % 6 == 0) for name, label in zip(names, labels, strict=True))
    assert parts.train.augment is not None
    assert parts.test.augment is None


def test_melanoma_without_images_is_named(tmp_path):
    (tmp_path / "melanoma").mkdir()
    write_table(tmp_path / "melanoma" / "train.csv", ["image_name", "target"], [["a", 1]])
    with pytest.raises(FileNotFoundError, match="no JPEG or PNG images"):
        melanoma(tmp_path)


def test_melanoma_reports_what_it_skips(tmp_path):
    melanoma_folder(tmp_path)
    broken(tmp_path / "melanoma" / "jpeg" / "train" / "ISIC_0000007.jpg")
    parts = melanoma(tmp_path, size=16, cache=tmp_path / "cache", on_error="skip")
    assert [Path(item.value).stem for item in parts.report.unreadable] == ["ISIC_0000007"]


def write_ham10000(root):
    (root / "ham10000").mkdir(parents=True)
    pixels = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    np.savez(
        root / HAM10000_FILE,
        x=pixels,
        y=np.array([0, 1, 0, 1, 1, 2], np.uint8),
        class_names=np.array(["df", "mel", "nv"]),
        lesion=np.arange(6, dtype=np.int32),
        split=np.array([0, 0, 1, 2, 0, 1], np.uint8),
        image_id=np.array([f"ISIC_{number}" for number in range(6)]),
    )


def test_ham10000_follows_its_own_split(tmp_path):
    write_ham10000(tmp_path)
    parts = ham10000(tmp_path)
    assert [part.names for part in (parts.train, parts.valid, parts.test)] == [
        ["ISIC_0", "ISIC_1", "ISIC_4"],
        ["ISIC_2", "ISIC_5"],
        ["ISIC_3"],
    ]
    assert parts.train.labels.tolist() == [0, 1, 1]
    assert ham10000(tmp_path, targets=["nv", "df"]).valid.labels.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match="one of df, mel, nv"):
        ham10000(tmp_path, targets="melanoma")


@pytest.mark.data
@pytest.mark.skipif(not (REAL / HAM10000_FILE).exists(), reason="APMAX_DATA has no HAM10000")
def test_real_ham10000_has_its_counts():
    parts = ham10000()
    assert [len(part) for part in (parts.train, parts.valid, parts.test)] == [8032, 993, 990]
    assert sum(int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)) == 1113


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_absent_set_says_where_it_was_looked_for(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        IMAGE_SETS[name](tmp_path)


def test_augmentation_follows_the_size():
    assert augment_for(32) is SMALL_IMAGES
    assert augment_for(384) is LARGE_IMAGES


@pytest.mark.parametrize("limit", [200, 599])
def test_image_of_too_many_pixels_is_refused_by_its_header(tmp_path, monkeypatch, limit):
    # 20×30: more than the limit, and more than twice the limit, where Pillow itself raises.
    small, large = flat(tmp_path / "a.png", 1, size=(10, 10)), flat(tmp_path / "b.png", 2, size=(20, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr(Image.Image, "load", _loads_only_small(Image.Image.load))
    decoded = decode_all([small, large], 8, on_error="skip", cache=tmp_path / "cache")
    assert [item.row for item in decoded.unreadable] == [1]
    assert decoded.unreadable[0].reason.startswith("600 pixels, more than ")
    assert "MAX_IMAGE_PIXELS" in decoded.unreadable[0].reason


def _loads_only_small(load):
    def checked(image):
        assert image.size != (20, 30)
        return load(image)

    return checked


def test_real_limit_of_pixels_holds_for_a_small_file(tmp_path):
    # A header of 10,000 × 9,000 pixels without content: decoding it would raise another error.
    path = tmp_path / "a.bmp"
    flat(path, 1)
    content = bytearray(path.read_bytes())
    content[18:26] = (10_000).to_bytes(4, "little") + (9_000).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"90,000,000 pixels, more than 89,478,485"):
        Decoder(8)(path)


@pytest.mark.filterwarnings("error")
def test_size_of_a_too_large_image_is_read_without_a_warning(tmp_path, monkeypatch):
    path = flat(tmp_path / "a.png", 1, size=(20, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    assert decoding.shape_of(path) == (20, 30)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_deep_grey_keeps_its_high_byte(tmp_path, dtype):
    values = np.array([[0, 255, 256], [4096, 65280, 65535]], dtype)
    Image.fromarray(values).save(tmp_path / "a.tif")
    with Image.open(tmp_path / "a.tif") as image:
        assert np.asarray(decoding._eight_bits(image, Image)).tolist() == (values // 256).tolist()


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_brightness_of_images_of_16_bits_can_be_compared(tmp_path, ending):
    # The dark one has no value above 255.
    for name, value in (("dark", 200), ("lighter", 1000)):
        Image.fromarray(np.full((4, 4), value, np.uint16)).save(tmp_path / f"{name}.{ending}")
    dark, lighter = (Decoder(4)(tmp_path / f"{name}.{ending}").max() for name in ("dark", "lighter"))
    assert (dark, lighter) == (0, 3)


def test_images_of_12_bits_in_files_of_16_are_reported_as_nearly_black(tmp_path):
    for number in range(3):
        Image.fromarray(np.full((4, 4), 4095 - number, np.uint16)).save(tmp_path / f"{number}.png")
    files = [str(tmp_path / f"{number}.png") for number in range(3)]
    _, report = image_dataset(files, size=4, cache=tmp_path / "cache")
    assert report.lines() == [
        "images are nearly black: the brightest pixel that was found has 15 of 255, as in 16-bit files of 12-bit "
        "values; spread these over the whole range first (× 16)"
    ]


def test_one_image_that_is_not_black_is_enough_for_no_report(tmp_path):
    files = [flat(tmp_path / "0.png", 200), broken(tmp_path / "1.jpg")]
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "2.png")
    _, report = image_dataset([*files, str(tmp_path / "2.png")], size=4, cache=tmp_path / "cache", on_error="skip")
    assert (report.brightest, len(report.lines())) == (200, 1)


def test_grey_of_8_bits_in_a_file_of_32_is_kept(tmp_path):
    Image.fromarray(np.full((4, 4), 200, np.int32)).save(tmp_path / "a.tif")
    assert Decoder(4)(tmp_path / "a.tif").max() == 200


def test_limits_of_pillow_that_decide_what_is_read_are_part_of_the_key(tmp_path, monkeypatch):
    path = flat(tmp_path / "a.png", 1, size=(20, 30))
    large = [flat(tmp_path / "b.png", 2, size=(10, 10)), path]
    with monkeypatch.context() as low:
        low.setattr(Image, "MAX_IMAGE_PIXELS", 500)
        assert len(decode_all(large, 8, on_error="skip", cache=tmp_path / "cache").unreadable) == 1
    assert decode_all(large, 8, cache=tmp_path / "cache").unreadable == []

    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "c.jpg")
    (tmp_path / "c.jpg").write_bytes((tmp_path / "c.jpg").read_bytes()[:-500])
    cut = [path, str(tmp_path / "c.jpg")]
    assert len(decode_all(cut, 8, on_error="skip", cache=tmp_path / "cache").unreadable) == 1
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert decode_all(cut, 8, cache=tmp_path / "cache").unreadable == []


def failing_once(monkeypatch, number):
    """Make the second image fail with an error of the system, until the returned function is called."""
    opened = Image.open

    def fails(path, *arguments):
        if str(path).endswith("b.png"):
            raise OSError(number, "for a while", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(Image, "open", fails)
    return lambda: monkeypatch.setattr(Image, "open", opened)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_failure_that_may_pass_is_not_cached(tmp_path, monkeypatch, number):
    files, cache = [flat(tmp_path / "a.png", 10), flat(tmp_path / "b.png", 20)], tmp_path / "cache"
    works_again = failing_once(monkeypatch, number)
    found = decode_all(files, 8, cache=cache, on_error="skip")
    assert [type(item) for item in found.unreadable] == [UnreadableRow]
    assert [(item.row, item.value) for item in found.unreadable] == [(1, files[1])]
    # Other processes open the file that is not in the cache by its path.
    assert reds(pickle.loads(pickle.dumps(found.store))) == [10, 0]
    with pytest.raises(ValueError, match="1 of 2 images cannot be read"):
        decode_all(files, 8, cache=cache)
    works_again()
    assert reds(decode_all(files, 8, cache=cache).store) == [10, 20]
    assert len([folder for folder in cache.iterdir() if not folder.name.startswith(".")]) == 1
    assert len(list(cache.iterdir())) == 2


@pytest.mark.slow
def test_images_that_are_not_cached_are_deleted_at_the_end(tmp_path):
    files = [flat(tmp_path / "a.png", 10), flat(tmp_path / "b.png", 20)]
    script = f"""
import errno
from apmax.data.images import decoding
usual = decoding.Decoder.__call__
def fails(self, path):
    if path.endswith("b.png"):
        raise PermissionError(errno.EACCES, "no", path)
    return usual(self, path)
decoding.Decoder.__call__ = fails
found = decoding.decode_all({files!r}, 8, cache={str(tmp_path / "cache")!r}, on_error="skip")
assert len(list(found.store.path.parent.iterdir())) == 2
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("what", ["missing", "folder", "below a file"])
def test_failure_that_the_key_tells_is_cached(tmp_path, monkeypatch, what):
    places = {"missing": tmp_path / "no.png", "folder": tmp_path, "below a file": tmp_path / "a.png" / "b.png"}
    files, cache = [flat(tmp_path / "a.png", 10), str(places[what])], tmp_path / "cache" / "c"
    cache.mkdir(parents=True)
    assert len(decode_all(files, 8, cache=cache, on_error="skip").unreadable) == 1
    monkeypatch.setattr(decoding, "write_chunks", None)
    assert len(decode_all(files, 8, cache=cache, on_error="skip").unreadable) == 1
