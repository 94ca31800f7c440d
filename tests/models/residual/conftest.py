"""Lets the tests here share `artifacts`, which lies next to them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
