"""Images: 8-bit stores, seeded augmentation of batches, published sets, and your own files."""

from apmax.data.images.augmentation import CIFAR, IMAGENET, LARGE_IMAGES, SMALL_IMAGES, Augment, Normalise
from apmax.data.images.cifar import cifar10, cifar100
from apmax.data.images.contact_sheet import best_rows, contact_sheet, contact_sheet_of_files, describe_best
from apmax.data.images.dataset import ImageDataset, ImageStore, images_at_a_time
from apmax.data.images.decoding import (
    DECODER_VERSION,
    ENDINGS,
    FITS,
    DecodedImages,
    Decoder,
    decode_all,
    decode_stream,
    shape_of,
)
from apmax.data.images.folder import ImageFolder
from apmax.data.images.reading import (
    ImageParts,
    ImageReport,
    augment_for,
    describe_ignored,
    image_dataset,
    read_csv,
    read_folder,
)
from apmax.data.images.sets import IMAGE_SETS, ham10000, melanoma

__all__ = [
    "CIFAR",
    "DECODER_VERSION",
    "ENDINGS",
    "FITS",
    "IMAGENET",
    "IMAGE_SETS",
    "LARGE_IMAGES",
    "SMALL_IMAGES",
    "Augment",
    "DecodedImages",
    "Decoder",
    "ImageDataset",
    "ImageFolder",
    "ImageParts",
    "ImageReport",
    "ImageStore",
    "Normalise",
    "augment_for",
    "best_rows",
    "cifar10",
    "cifar100",
    "contact_sheet",
    "contact_sheet_of_files",
    "decode_all",
    "decode_stream",
    "describe_best",
    "describe_ignored",
    "ham10000",
    "image_dataset",
    "images_at_a_time",
    "melanoma",
    "read_csv",
    "read_folder",
    "shape_of",
]
