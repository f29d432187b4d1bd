"""Who may use the device now, and who waits in which place."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class DeviceQueue:
    """One run at a time on the device, first come, first served."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()

    @contextmanager
    def ticket(self) -> Iterator[object]:
        """A place in the queue, given up at the end of the block."""
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
        try:
            yield ticket
        finally:
            with self._changed:
                self._tickets.remove(ticket)
                self._changed.notify_all()

    def ahead(self, ticket: object, timeout: float) -> int:
        """How many are before this ticket: 0 if the device is its own. Waits up to `timeout` seconds for that."""
        with self._changed:
            self._changed.wait_for(lambda: self._tickets[0] is ticket, timeout)
            return self._tickets.index(ticket)
