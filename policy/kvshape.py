"""placeholder: being written"""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVShape:
    layers: int
