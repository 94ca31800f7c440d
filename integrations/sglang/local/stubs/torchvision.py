"""CPU stand-in for torchvision: transformers and SGLang import it, text models never call it."""

import enum
import importlib

from kvferry.integrations.sglang.local.mock import mock_package


class InterpolationMode(enum.Enum):
    """The members that transformers' image helpers list at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


mock_package("torchvision", __version__="0.28.0")
for _name in ("torchvision.transforms", "torchvision.transforms.functional"):
    importlib.import_module(_name).__dict__["InterpolationMode"] = InterpolationMode
