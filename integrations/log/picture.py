"""What a decision was made from, to be logged with it: any policy can be asked later what it would have done.

Its numbers are float64, little endian, in the order: the cluster's time_s; the request's expected output
tokens, their p90, and its objectives for TTFT and ITL; the columns of State that the cluster table names; per
plan whether the pair had met, then whether it was excluded; per worker whether it was excluded, then the
prompt tokens it held. Like bytes of all numbers stand together, for most high bytes are equal, then zlib.
"""

import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from operator import attrgetter

import numpy as np

from kvferry.integrations.log.cluster_table import ClusterTable, columns_of, write_table
from kvferry.integrations.log.record import Picture
from kvferry.policy.candidates import Candidates, Floats
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.request import Request

# Beyond this a picture would be larger than the rest of its record.
MAX_WORKERS = 64
MAX_PLANS = 1024
# A stream forgets its oldest entries, so tables in use are told again.
TELL_EVERY = 5_000
KEPT = 64

LEADING = 5
_columns = attrgetter(*State.__slots__)


class Pictures:
    """Takes them, and calls `tell(id, line)` with every cluster table before the first picture that names it.

    Not of more than MAX_WORKERS workers or MAX_PLANS plans. To be called from one thread.
    """

    def __init__(self, tell: Callable[[str, bytes], None]) -> None:
        self._tell = tell
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._uses: Counter[str] = Counter()

    def take(self, request: Request, cluster: Cluster) -> Picture | None:
        """The picture of one decision; None of a cluster that is too large."""
        table = cluster.candidates
        if len(table.workers) > MAX_WORKERS or len(table.keys) > MAX_PLANS:
            return None
        # `keys` stays the same object while only loads and speeds change
        known = self._known.get(id(table.keys))
        if known is None:
            known = self._known[id(table.keys)] = _Known(table, cluster.state)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        if self._uses[known.id] % TELL_EVERY == 0:
            self._tell(known.id, known.line)
        self._uses[known.id] += 1
        return Picture(known.id, packed(numbers_of(request, cluster)))


class _Known:
    __slots__ = ("id", "keys", "line")

    def __init__(self, table: Candidates, state: State) -> None:
        made = ClusterTable.of(table, columns_of(state))
        self.id, self.line = made.id, write_table(made)
        self.keys = table.keys  # so that no other object gets its id


def numbers_of(request: Request, cluster: Cluster) -> Floats:
    """The numbers of a picture, as said above."""
    table, gone = cluster.candidates, cluster.excluded
    plans, workers = len(table.keys), len(table.workers)
    last = np.zeros(2 * plans + 2 * workers)
    np.equal(table.meeting_s + table.meeting_s_per_byte, 0.0, out=last[:plans], casting="unsafe")
    if gone:
        last[plans : 2 * plans] = [key in gone for key in table.keys]
        last[2 * plans : 2 * plans + workers] = [worker.id in gone for worker in table.workers]
    for worker, tokens in request.held_tokens.items():
        place = table.index.get(worker)
        if place is not None:
            last[2 * plans + workers + place] = tokens
    leading = (
        cluster.time_s,
        request.expected_output_tokens,
        request.expected_output_tokens_p90,
        request.slo.ttft_s,
        request.slo.itl_s,
    )
    return np.concatenate((leading, *_columns(cluster.state), last))


def packed(numbers: Floats) -> bytes:
    return zlib.compress(numbers.astype("<f8", copy=False).view(np.uint8).reshape(-1, 8).T.tobytes(), 1)


def unpacked(data: bytes, count: int) -> Floats:
    """The `count` numbers again. Raises zlib.error, ValueError."""
    raw = np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(8, count)
    return np.ascontiguousarray(raw.T).view("<f8")[:, 0].astype(np.float64)
