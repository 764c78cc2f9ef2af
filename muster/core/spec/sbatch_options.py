"""The options on the #SBATCH lines of a job script, as sbatch reads them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from muster.core.values.errors import FieldError

MARK = "#SBATCH"
_SHORT = {
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "G": "gpus",
    "t": "time",
    "a": "array",
    "d": "dependency",
    "o": "output",
    "e": "error",
    "p": "partition",
    "A": "account",
    "b": "begin",
    "H": "hold",
    "D": "chdir",
}
SWITCHES = frozenset({"hold", "requeue"})
TRANSLATED = SWITCHES | frozenset(_SHORT.values()) | {"ntasks-per-node", "mem", "mem-per-cpu", "gres", "gpus-per-node"}
TRANSLATED |= {"export", "signal"}
_MARKED = re.compile(r"#SBATCH(?:\s|$)")
_SHORT_OPTION = re.compile(r"-([A-Za-z])(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """An option with its line in the script. `name` is the long one without dashes, or what was written."""

    line: int
    name: str
    value: str | None

    @property
    def is_translated(self) -> bool:
        return self.name in TRANSLATED

    @property
    def written(self) -> str:
        """Return the option's name as a user writes it."""
        return self.name if self.name.startswith("-") else f"--{self.name}"

    def error(self, problem: str, remedy: str) -> FieldError:
        """Return an error that names the option and its line."""
        return FieldError(f"line {self.line}: {self.written}", problem, remedy)


def has_sbatch_lines(script: str) -> bool:
    return any(True for _ in _marked_lines(script))


def sbatch_options(script: str) -> tuple[dict[str, SbatchOption], list[FieldError]]:
    """Return the options by name, of one that is repeated the last; and an error for each that cannot be read.

    sbatch reads no lines after the first command, and neither does this.
    """
    options: dict[str, SbatchOption] = {}
    errors: list[FieldError] = []
    for number, text in _marked_lines(script):
        try:
            words = _words(text)
        except ValueError as error:
            errors.append(FieldError(f"line {number}", str(error).lower(), "close what was opened"))
            continue
        while words:
            word = words.pop(0)
            following = words[0] if words and not _is_option(words[0]) else None
            found, takes_following = _option(number, word, following)
            words = words[1:] if takes_following else words
            if isinstance(found, FieldError):
                errors.append(found)
            else:
                options[found.name] = found
    return options, errors


def _marked_lines(script: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(script.splitlines(), start=1):
        if _MARKED.match(line):
            yield number, line.removeprefix(MARK)
        elif line.strip() and not line.startswith("#"):
            return


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""  # shlex would end `a#b` at the #
    words = list(lexer)
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _option(line: int, word: str, following: str | None) -> tuple[SbatchOption | FieldError, bool]:
    """Return the option or its error, and whether the following word is its value: sbatch takes no other words."""
    short = _SHORT_OPTION.fullmatch(word)
    if word.startswith("--"):
        name, equals, content = word[2:].partition("=")
        attached = content if equals else None
    elif short:
        name, attached = _SHORT.get(short[1], f"-{short[1]}"), short[2] or None
    else:
        return FieldError(f"line {line}", f"{word!r} is no option", f"write {MARK} --option=value"), False
    if name in SWITCHES:
        option = SbatchOption(line, name, None)
        if attached is not None or following is not None:
            return option.error("it takes no value", f"write {option.written} alone"), attached is None
        return option, False
    value = following if attached is None else attached
    option = SbatchOption(line, name, value)
    takes_following = attached is None and following is not None
    if option.is_translated and not value:
        return option.error("it has no value", f"write {option.written}=VALUE"), takes_following
    return option, takes_following
