"""The tables of both state machines: (state, trigger) -> (state, effects). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Trigger = TypeVar("Trigger", bound=Enum)
Effect = TypeVar("Effect", bound=Enum)


class StateTable(Generic[State, Trigger, Effect]):
    """One state machine as a table, built row by row."""

    def __init__(self, states: type[State], triggers: type[Trigger]) -> None:
        self._states = states
        self._triggers = triggers
        self.rows: dict[tuple[State, Trigger], tuple[State, tuple[Effect, ...]]] = {}

    def on(self, states: Iterable[State], triggers: Iterable[Trigger], to: State | None, *effects: Effect) -> None:
        """Add rows: these triggers in these states lead to ``to``; None: to the state they found."""
        for state in states:
            for trigger in triggers:
                self.rows[state, trigger] = (state if to is None else to, effects)

    @property
    def impossible(self) -> frozenset[tuple[State, Trigger]]:
        """The pairs that cannot come together."""
        return frozenset((s, t) for s in self._states for t in self._triggers if (s, t) not in self.rows)

    def next(self, state: State, trigger: Trigger) -> tuple[State, tuple[Effect, ...]]:
        """Return the next state, and the effects to perform in order. Raises LookupError for an impossible pair."""
        try:
            return self.rows[state, trigger]
        except KeyError:
            raise LookupError(f"{trigger.name} cannot happen while {state.name}") from None

    def diagram(
        self, first: State, last: State, everywhere: Sequence[Trigger], example: State, *, grouped: bool = False
    ) -> str:
        """Return the table as a Mermaid state diagram, without triggers that change nothing.

        Arguments: every state deals with the triggers ``everywhere`` as the ``example`` does; they are a note each.
        ``grouped``: the triggers between two states follow each other.
        """
        arrows: dict[tuple[object, ...], list[str]] = {}
        for (state, trigger), (to, effects) in self.rows.items():
            if trigger not in everywhere and (state is not to or effects):
                group = (state, to) if grouped else (state, to, trigger)
                arrows.setdefault(group, []).append(f"    {state.name} --> {to.name}: {_label(trigger, effects)}")
        lines = ["stateDiagram-v2", f"    [*] --> {first.name}", *(line for group in arrows.values() for line in group)]
        for trigger in everywhere:
            to, effects = self.rows[example, trigger]
            lines.append(f"    note right of {to.name}: from anywhere: {_label(trigger, effects)}")
        return "\n".join([*lines, f"    {last.name} --> [*]"])


def _label(trigger: Enum, effects: Iterable[Enum]) -> str:
    done = ", ".join(effect.value for effect in effects)
    return f"{trigger.value} / {done}" if done else str(trigger.value)
