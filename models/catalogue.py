"""The catalogues in one place: path classes, KV shapes and prior worker speeds."""

from kvferry.models.link_catalogue import PathRule, default_path_class, load_links, load_rules
from kvferry.models.model_catalogue import (
    ModelEntry,
    UnknownModelError,
    find_model,
    find_shape,
    load_models,
)
from kvferry.models.speed_catalogue import SpeedPrior, UnknownSpeedError, find_speed, load_speeds
from kvferry.models.toml_file import ConfigError

__all__ = [
    "ConfigError",
    "ModelEntry",
    "PathRule",
    "SpeedPrior",
    "UnknownModelError",
    "UnknownSpeedError",
    "default_path_class",
    "find_model",
    "find_shape",
    "find_speed",
    "load_links",
    "load_models",
    "load_rules",
    "load_speeds",
]
