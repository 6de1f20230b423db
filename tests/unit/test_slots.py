"""A run's slots: never more calls at once than there are, and none is lost."""

from __future__ import annotations

import asyncio

from pyagent.core.fleet.slots import Slots


def test_a_slot_taken_from_an_idle_holder_is_waited_for_again() -> None:
    """A holder whose slot was taken while it was idle waits when it goes on; the number of slots stays."""

    async def work() -> None:
        slots = Slots(1)
        async with slots.slot() as first:
            first.suspend()
            second = slots.slot()
            await second.resume()
            going_on = asyncio.create_task(first.resume())
            await asyncio.sleep(0)
            assert not going_on.done()
            await second.__aexit__(None, None, None)
            await asyncio.wait_for(going_on, 60)
        assert slots.num_free == 1

    asyncio.run(work())


def test_a_slot_that_comes_to_a_cancelled_waiter_goes_on_to_the_next() -> None:
    """A waiter that is cancelled in the turn in which its slot comes hands it on."""

    async def work() -> None:
        slots = Slots(1)
        await slots.take()
        late = asyncio.create_task(slots.take())
        await asyncio.sleep(0)
        slots.give()
        late.cancel()
        await asyncio.wait([late])
        await asyncio.wait_for(slots.take(), 60)

    asyncio.run(work())


def test_owners_take_turns_whatever_ranks_they_have() -> None:
    """Of two owners' waiters each second slot is the other's, with one slot or two; of one owner's the lowest rank."""

    async def work(num_slots: int) -> list[str]:
        slots, served = Slots(num_slots), list[str]()

        async def hold(owner: str, priority: float) -> None:
            async with slots.slot((priority, 0.0), owner=owner):
                served.append(f"{owner}{priority:g}")
                await asyncio.sleep(0)

        waiting = [("a", -9), ("a", -8), ("a", -9.5), ("a", -7), ("b", 2), ("b", 1)]
        await asyncio.gather(*(hold(owner, priority) for owner, priority in waiting))
        assert slots.num_free == num_slots
        return served

    assert asyncio.run(work(1)) == ["a-9", "b1", "a-9.5", "b2", "a-8", "a-7"]
    assert [name[0] for name in asyncio.run(work(2))] == ["a", "a", "b", "a", "b", "a"]
