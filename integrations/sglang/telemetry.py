"""What the plugins in the workers tell, as it arrives: to the requests and workers that it is about."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvferry.integrations.sglang.fleet import Fleet
from kvferry.integrations.sglang.join import Join
from kvferry.integrations.sglang.plugin.wire import LoadRecord, RequestRecord, WorkerRecord, decode

log = logging.getLogger("kvferry.telemetry")


@dataclass(slots=True, eq=False)
class Telemetry:
    """`take` one entry of the stream; never raises. Entries of workers that this router does not know are
    passed over, what is no record is counted and told once."""

    fleet: Fleet
    join: Join
    undecodable: Callable[[], None] = lambda: None
    _complained: bool = False

    def take(self, data: bytes) -> None:
        try:
            record = decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.undecodable()
            if not self._complained:
                self._complained = True
                log.error("telemetry that cannot be read (counted from now on): %s", error)
            return
        worker = self.fleet.heard(record.worker)
        if worker is None:
            return
        match record:
            case RequestRecord():
                self.join.take(worker, record)
            case LoadRecord():
                if record.local is not None:
                    self.fleet.stalled(worker, record.worker, record.local)
            case WorkerRecord():
                self.fleet.described(worker, record)
