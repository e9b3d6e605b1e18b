"""Images: uint8 stores, batches augmented at once, the paper's sets, and folders of pictures."""

from apmax.data.images.augment import CIFAR, IMAGENET, LARGE_IMAGES, SMALL_IMAGES, Augment, Normalise
from apmax.data.images.cifar import cifar10, cifar100
from apmax.data.images.contact_sheet import contact_sheet, contact_sheet_of_files
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.folder import ImageFolder
from apmax.data.images.parts import ImageParts, ImageReport, describe_ignored
from apmax.data.images.reading import augment_for, image_dataset, read_csv, read_folder
from apmax.data.images.sets import IMAGE_SETS
from apmax.data.images.skin import ham10000, melanoma
from apmax.data.images.store import ImageStore

__all__ = [
    "CIFAR",
    "IMAGENET",
    "IMAGE_SETS",
    "LARGE_IMAGES",
    "SMALL_IMAGES",
    "Augment",
    "ImageDataset",
    "ImageFolder",
    "ImageParts",
    "ImageReport",
    "ImageStore",
    "Normalise",
    "augment_for",
    "cifar10",
    "cifar100",
    "contact_sheet",
    "contact_sheet_of_files",
    "describe_ignored",
    "ham10000",
    "image_dataset",
    "melanoma",
    "read_csv",
    "read_folder",
]
