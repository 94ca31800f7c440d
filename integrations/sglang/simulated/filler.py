"""The text of simulated answers: four-letter words, one a token, the same in every answer."""

import msgspec

WORDS = (
    *("ship", "keel", "mast", "sail", "helm", "deck", "hull", "bows"),
    *("tide", "wave", "wind", "foam", "buoy", "quay", "pier", "dock"),
)
WIDTH = 5  # of a word and the space before it
FIRST_ID = 1000
_ID_WIDTH = 5  # of an id and the comma after it
_TEXT = "".join(" " + word for word in WORDS)
_IDS = "".join(f"{FIRST_ID + place}," for place in range(len(WORDS))).encode()


def text(first: int, last: int) -> str:
    """Tokens `first` to `last` (exclusive) of the answer."""
    begin = first % len(WORDS)
    count = last - first
    return (_TEXT * (1 + (begin + count) // len(WORDS)))[begin * WIDTH : (begin + count) * WIDTH]


def token_ids(count: int) -> msgspec.Raw:
    """The first `count` ids of the answer, as JSON."""
    return msgspec.Raw(b"[" + (_IDS * (1 + count // len(WORDS)))[: max(0, count * _ID_WIDTH - 1)] + b"]")
