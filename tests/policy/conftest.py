"""Lets the tests here share `worlds` and `scalar_reference`, which lie next to them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
