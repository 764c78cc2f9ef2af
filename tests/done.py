"""What a command that has ended left. Apart from what runs commands: that loads all of Muster."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Done:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)
