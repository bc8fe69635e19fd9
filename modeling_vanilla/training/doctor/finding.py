"""What a check found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """
    Attributes:
        level: "error" where the run can't succeed.
        text: what was found, and what to do about it.
    """

    level: Literal["ok", "warning", "error"]
    text: str

    def __str__(self) -> str:
        return f"{self.level:<7}  {self.text}"
