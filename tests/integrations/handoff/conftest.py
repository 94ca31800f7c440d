"""The helpers of these tests are imported by their files' names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from handoff_ways import WAYS, Way


@pytest.fixture(scope="session")
def ways() -> Iterator[dict[str, Way]]:
    made = {name: Way(name) for name in WAYS}
    yield made
    for way in made.values():
        way.end()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, ways: dict[str, Way]) -> Way:
    return ways[request.param]
