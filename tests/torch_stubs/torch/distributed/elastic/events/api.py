from dataclasses import dataclass, field
from enum import Enum

EventSource = Enum("EventSource", "AGENT WORKER")


@dataclass
class Event:
    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict = field(default_factory=dict)
