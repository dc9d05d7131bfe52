"""Shadows that have to go when somebody is let in."""

from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.room import Room


def all_but(displaced: tuple[str, ...], books: Books) -> tuple[str, ...]:
    """Every shadow that does not go already."""
    shadows = [other.booking.key for other in books.entries if other.booking.shadow]
    return tuple(key for key in shadows if key not in displaced)


def in_its_place(entry: Entry, displaced: tuple[str, ...], books: Books, room: Room) -> tuple[str, ...]:
    """Those whose seats or blocks it needs once the displaced have gone."""
    there = [other for other in books.entries if other.booking.key not in displaced]
    seats = room.max_running - len(there)
    slots = room.entry_slots - sum(other.slots for other in there)
    keys: list[str] = []
    for other in sorted(there, key=lambda other: other.shed_first):
        if not other.booking.shadow or (seats > 0 and slots >= entry.slots):
            break
        keys.append(other.booking.key)
        seats, slots = seats + 1, slots + other.slots
    return tuple(keys)
