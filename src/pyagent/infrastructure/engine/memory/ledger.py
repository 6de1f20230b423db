"""The byte ledger: every large holder of memory reserves its bytes here before it allocates them.

The process and each model's parts have accounts (`process`, `weights:NAME`, `kv:NAME`, ...). When the total is reached,
holders that said how they can give back are asked, the one used longest ago first; what still does not fit is refused
with the names of those who hold the memory. Knows nothing of models; allocates nothing. Invariants: the sum of all
reservations never exceeds the total; a reservation is given back exactly once. Safe from any thread: holders are asked
with the ledger's lock released, and must answer at once.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable

from pyagent.core.errors import CapacityError
from pyagent.core.sizes import format_bytes

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0

Reclaim = Callable[[int], None]
"""Free up to so many bytes at once, by releasing or shrinking reservations. May free none."""


class Reservation:
    """Bytes an account holds, until `release`."""

    def __init__(self, ledger: Ledger, account: str, num_bytes: int, reclaim: Reclaim | None) -> None:
        """Made by `Ledger.reserve`."""
        self.account = account
        self.num_bytes = num_bytes
        self.reclaim = reclaim
        self.used = 0
        self.is_released = False
        self._ledger = ledger

    def touch(self) -> None:
        """Say that the memory is in use now; who was used longest ago is asked first to give back."""
        self.used = self._ledger.tick()

    def resize(self, num_bytes: int) -> None:
        """Hold so many bytes from now on. Raises `CapacityError`, and changes nothing, when growing does not fit."""
        self._ledger.resize(self, num_bytes)

    def try_resize(self, num_bytes: int) -> bool:
        """As `resize`, but reclaim nothing; return False, with nothing changed, when growing does not fit now."""
        return self._ledger.try_resize(self, num_bytes)

    def ask_others(self, num_bytes: int) -> bool:
        """Ask other holders to give back until so many bytes are free; whether they are."""
        return self._ledger.ask_others(self, num_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes it could grow by now."""
        return self._ledger.free_bytes

    def release(self) -> None:
        """Give the bytes back. Safe to call twice; they count once."""
        self._ledger.release(self)


class Ledger:
    """A total of bytes, and who holds how many of them."""

    def __init__(self, total_bytes: int, setting: str = "engine.memory") -> None:
        """`setting` is what bounds the total."""
        self.total_bytes = total_bytes
        self.setting = setting
        self._held: dict[int, Reservation] = {}
        self._lock = threading.Lock()
        self._ticks = itertools.count(1)

    @property
    def free_bytes(self) -> int:
        """Return the bytes that are not reserved."""
        with self._lock:
            return self._free()

    def accounts(self) -> dict[str, int]:
        """Return bytes by account, largest first; accounts that hold nothing are left out."""
        with self._lock:
            held = Counter[str]()
            for reservation in self._held.values():
                held[reservation.account] += reservation.num_bytes
        return {account: size for account, size in held.most_common() if size}

    def reserve(self, account: str, num_bytes: int, reclaim: Reclaim | None = None) -> Reservation:
        """Hold bytes before they are allocated. Raises `CapacityError` naming who holds what when they do not fit.

        `reclaim` says how the holder can give some back when others need them.
        """
        reservation = Reservation(self, account, 0, reclaim)
        reservation.touch()
        self.resize(reservation, num_bytes)
        return reservation

    def resize(self, reservation: Reservation, num_bytes: int) -> None:
        """Change what a reservation holds; see `Reservation.resize`."""
        if self.try_resize(reservation, num_bytes):
            return
        self.ask_others(reservation, num_bytes - reservation.num_bytes)
        if not self.try_resize(reservation, num_bytes):
            raise CapacityError(self._refusal(reservation, num_bytes), retry_after_seconds=_RETRY_SECONDS)

    def ask_others(self, asker: Reservation, num_bytes: int) -> bool:
        """See `Reservation.ask_others`."""
        for holder in self._askable(asker):
            if self.free_bytes >= num_bytes:
                break
            _ask(holder, num_bytes - self.free_bytes)
        return self.free_bytes >= num_bytes

    def release(self, reservation: Reservation) -> None:
        """Take a reservation back; see `Reservation.release`."""
        with self._lock:
            self._held.pop(id(reservation), None)
            reservation.num_bytes, reservation.is_released = 0, True

    def tick(self) -> int:
        """Return the next moment of the ledger's clock."""
        return next(self._ticks)

    def _free(self) -> int:
        return self.total_bytes - sum(reservation.num_bytes for reservation in self._held.values())

    def try_resize(self, reservation: Reservation, num_bytes: int) -> bool:
        """See `Reservation.try_resize`."""
        if num_bytes < 0:
            raise ValueError(f"a reservation holds 0 bytes or more, got {num_bytes}")
        with self._lock:
            assert not reservation.is_released, f"{reservation.account} was given back already"
            if num_bytes - reservation.num_bytes > max(0, self._free()):
                return False
            reservation.num_bytes = num_bytes
            self._held[id(reservation)] = reservation
            return True

    def _askable(self, asker: Reservation) -> list[Reservation]:
        with self._lock:
            others = [holder for holder in self._held.values() if holder.reclaim and holder.account != asker.account]
        return sorted(others, key=lambda holder: holder.used)

    def _refusal(self, reservation: Reservation, num_bytes: int) -> str:
        held = ", ".join(f"{account} {format_bytes(size)}" for account, size in self.accounts().items()) or "no account"
        more, free = num_bytes - reservation.num_bytes, max(0, self.free_bytes)
        return (
            f"{reservation.account} needs {format_bytes(more)} of memory, but of the engine's "
            f"{format_bytes(self.total_bytes)} only {format_bytes(free)} are free; held by: {held}; try again when "
            f"they are idle, or raise {self.setting}"
        )


def _ask(holder: Reservation, num_bytes: int) -> None:
    try:
        if holder.reclaim is not None:
            holder.reclaim(num_bytes)
    except Exception:
        logger.exception("%s could not be asked to give memory back", holder.account)
