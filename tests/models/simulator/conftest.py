"""Lets the tests here share `engine_worlds` and `small_worlds`, which lie next to them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
