"""Those far behind in line, followed not one by one but as a stream through the seats."""

from typing import NamedTuple

from admission.forecast.entry import Entry


class Stream(NamedTuple):
    """Every seat is taken again as soon as it is free, until all is done."""

    at: float
    """When it begins, in seconds and in rounds."""
    rounds: float
    prompt_token: float
    """Seconds."""
    answer_token: float
    """Seconds of its share of a round."""
    waiting: float
    """Seconds that the rounds between them add to a token of a prompt."""
    cycle: float
    """Seconds from a token of an answer to its next, the prompts between them included."""

    def carry(self, entries: list[Entry], at: float) -> float:
        """Seat them one behind the other. When the last of them has ended."""
        prompt_token, answer_token, cycle = self.prompt_token, self.answer_token, self.cycle
        slow, begun_at, begun_round, last = prompt_token + self.waiting, self.at, self.rounds, at
        for entry in entries:  # hundreds of them for every verdict
            left, to_go = entry.left, entry.to_go
            at += left * prompt_token + to_go * answer_token
            speaks = at + left * slow
            if entry.begun_at > at:
                entry.begun_at = at
            if entry.first_at > speaks:
                entry.first_at = speaks
            end = speaks + (to_go - 1) * cycle if to_go > 1 else speaks
            entry.finish_at = end
            entry.end_round = begun_round + (end - begun_at) / cycle
            if end > last:
                last = end
        return last

    def work(self, entry: Entry) -> float:
        return entry.left * self.prompt_token + entry.to_go * self.answer_token

    def seat(self, entry: Entry, at: float) -> float:
        """When it ends, if it begins then."""
        speaks = at + entry.left * (self.prompt_token + self.waiting)
        entry.begun_at = min(entry.begun_at, at)
        entry.first_at = min(entry.first_at, speaks)
        return self.end(entry, speaks + max(0.0, entry.to_go - 1) * self.cycle)

    def end(self, entry: Entry, at: float) -> float:
        entry.finish_at = at
        entry.end_round = self.round_at(at)
        return at

    def round_at(self, at: float) -> float:
        return self.rounds + (at - self.at) / self.cycle
