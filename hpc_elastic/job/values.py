"""The types of single values in job and site files: how each is checked, and what JSON Schema says of it."""

from __future__ import annotations

import re
import signal
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetPydanticSchema,
    PlainValidator,
    StrictStr,
    WithJsonSchema,
    WrapValidator,
)

from hpc_elastic.job.names import LONGEST_NAME, RUN_NAME_PATTERN, is_run_name
from hpc_elastic.job.problems import describe
from hpc_elastic.job.sbatch_options import normalize_option
from hpc_elastic.plan.container import parse_mount
from hpc_elastic.plan.leases import LONGEST_LEASE_S, SHORTEST_LEASE_S
from hpc_elastic.plan.log_prefix import check_prefix
from hpc_elastic.plan.references import check_references
from hpc_elastic.plan.std_streams import MAP_PATTERN, STD_PATTERN, LocalStreams
from hpc_elastic.units import format_duration, format_slurm_memory, parse_duration, parse_size

SLOWEST_RATE = 1024 * 1024  # bytes a second
MOST_TEXT_BYTES = 128 * 1024 - 1  # of an argument or a variable with its name: execve(2), MAX_ARG_STRLEN
T = TypeVar("T")

# Where text is expected, a number or a boolean of YAML is the text that its author typed.
_SCALAR: dict[str, Any] = {"type": ["string", "number", "boolean"]}
_SCALAR_OR_NULL: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
_DURATION = {
    "type": "string",
    "anyOf": [
        {"pattern": r"^(?=.)([0-9.]+d)?([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?$"},
        {"pattern": r"^[0-9]+-[0-9]+(:[0-9]+){0,2}$"},
        {"pattern": r"^[0-9]+(:[0-9]+){1,2}$"},
    ],
    "examples": ["90m", "2h30m", "45s", "1-12:00:00"],
}
_SIZE = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?[KMGTkmgt]i?[Bb]?$|^0$", "examples": ["500M", "64G"]}
_STREAMS_OF_ONE = [{"type": "integer", "minimum": 0, "maximum": 3}, {"type": "string", "pattern": f"^{STD_PATTERN}$"}]
_STREAMS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": 3},
    {"type": "string", "pattern": f"^(?:{STD_PATTERN}|{MAP_PATTERN})$", "examples": ["both", "0:3,1:2"]},
    {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"anyOf": _STREAMS_OF_ONE},
    },
]
LEAST_LOG_BYTES = 64 * 1024  # well above what an error file keeps of standard error
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.A)
VARIABLE_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"
_TORCH = ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS", "ERROR_FILE", "USE_AGENT_STORE")
_OF_A_RANK = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "HPC_ELASTIC_RUN_DIR", "HPC_ELASTIC_ATTEMPT", "HPC_ELASTIC_AGENT"}
    | {f"{prefix}RANK" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_")}
    | {f"{prefix}WORLD_SIZE" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_")}
    | {f"TORCHELASTIC_{name}" for name in _TORCH}
)


def check_line(text: str, *, allowed: str = "") -> str:
    """Return the text if it can stand in one line of a script, a log or a file name.

    Raises:
        ValueError: the text holds a control character, a line separator or half of a surrogate pair.
    """
    for character in text:
        if character not in allowed and unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise ValueError(f"expected text without control characters, found U+{ord(character):04X} in {text!r}")
    return text


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError(f"expected text that is not empty, found {text!r}")
    return check_line(text)


def _path(text: str) -> str:
    if text.startswith("~"):
        raise ValueError(f"expected a path without ~, which nothing expands here, found {text!r}; write it in full")
    return _filled(text)


def _no_option(text: str) -> str:
    if text.startswith("-"):
        raise ValueError(f"expected no leading dash, which would make it an option, found {text!r}")
    return _path(text)


def _with_references(text: str, *, allowed: str = "") -> str:
    check_references(text)
    size = len(check_line(text, allowed=allowed).encode())
    if size > MOST_TEXT_BYTES:
        advice = "Linux starts no program with a longer text: write it to a file, and give its path"
        raise ValueError(f"expected at most {MOST_TEXT_BYTES} bytes, found {size}; {advice}")
    return text


def _argument(text: str) -> str:
    """Return an argument, which may be a prompt or a JSON text of many lines: it is in no script, and in no log."""
    return _with_references(text, allowed="\n\t")


def _mount(text: str) -> str:
    parse_mount(_path(text))
    return text


def _shell_line(text: str) -> str:
    if not text.strip():
        raise ValueError(f"expected a line of shell, found {text!r}")
    return check_line(text, allowed="\n\t")


def check_name(text: str) -> str:
    """Return the name if it can be a part of a directory and a Slurm job's name.

    Raises:
        ValueError: it cannot be one.
    """
    if not _NAME.fullmatch(text):
        raise ValueError(f"expected up to 64 letters, digits, dots, dashes and underscores, found {text!r}")
    return text


def _run_name(text: str) -> str:
    if not is_run_name(text):
        raise ValueError(f"expected up to {LONGEST_NAME} letters, digits, dots, dashes and underscores, found {text!r}")
    return text


def _variable(name: str) -> str:
    if not re.fullmatch(VARIABLE_PATTERN, name) or name.endswith("\n"):
        raise ValueError("expected the name of an environment variable: letters, digits and underscores")
    if name in _OF_A_RANK:
        raise ValueError("every worker gets its own value of this variable; leave it out")
    return name


def _module(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"expected the name of a Python module, as after import, found {name!r}")
    return name


def _option_value(text: str) -> str:
    if text.lower() == "true":
        return "true"
    if text.lower() == "false":
        raise ValueError("expected a value, true for an option without one, or null to take a default away")
    return check_line(text)


def _text_first(parse: Callable[[str], T], expected: str) -> Callable[[object], T]:
    """Return a validator that parses text and lets numbers reach the parser, whose hint says what unit is missing."""

    def validate(value: object) -> T:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"expected {expected}, found {describe(value)}")
        return parse(str(value))

    return validate


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    return _text_first(parse_duration, "a duration such as 90m")(value)


def _at_least(least: timedelta) -> Callable[[timedelta], timedelta]:
    def check(value: timedelta) -> timedelta:
        if value < least:
            raise ValueError(f"expected at least {format_duration(least)}, found {format_duration(value)}")
        return value

    return check


def _health_check(value: object) -> bool | timedelta:
    if isinstance(value, bool):
        return value
    if not isinstance(value, (str, int, float, timedelta)):
        raise ValueError(f"expected true, false or a time limit such as 20s, found {describe(value)}")
    return _at_least(timedelta(seconds=1))(_duration(value))


def _lease(value: timedelta) -> timedelta:
    shortest, longest = timedelta(seconds=SHORTEST_LEASE_S), timedelta(seconds=LONGEST_LEASE_S)
    if not shortest <= value <= longest:
        bounds = f"{format_duration(shortest)} to {format_duration(longest)}"
        advice = "the default, 10s, is right for most clusters"
        raise ValueError(f"expected {bounds}, found {format_duration(value)}; {advice}")
    return value


def _percent(text: str) -> str:
    found = re.fullmatch(r"([0-9]{1,3}) ?%", text, re.A)
    if found is None or not 1 <= int(found[1]) <= 100:
        raise ValueError(f"expected a share from 1% to 100%, found {text!r}")
    return f"{int(found[1])}%"


def _replicas(value: object) -> int:
    if isinstance(value, bool) or value not in (0, 1):
        raise ValueError(f"expected 0 or 1, found {describe(value)}")
    return int(value)


def _rate(text: str) -> str:
    if parse_size(text) < SLOWEST_RATE:
        raise ValueError(f"expected at least 1M, found {text}")
    return text


def _memory(text: str) -> str:
    return "0" if text == "0" else format_slurm_memory(parse_size(text))


def _signal(name: str) -> str:
    short = name.upper().removeprefix("SIG")
    if f"SIG{short}" not in signal.Signals.__members__ or short in ("KILL", "STOP"):
        raise ValueError(f"expected the name of a signal that can be handled, such as USR2, found {name!r}")
    return short


def _workers(value: object) -> int | tuple[int, ...] | str:
    if value == "auto":
        return "auto"
    counts = list(value) if isinstance(value, (list, tuple)) else [value]
    numbers = [count for count in counts if type(count) is int and count >= 1]
    if not numbers or len(numbers) < len(counts):
        found = describe(value) if counts == [value] else ", ".join(map(describe, counts)) or "an empty list"
        raise ValueError(f"expected auto, a number of at least 1 or a list of such numbers, found {found}")
    return tuple(numbers) if isinstance(value, (list, tuple)) else numbers[0]


def _prefix(text: str) -> str:
    return check_line(check_prefix(text))


def _log_size(size: int) -> int:
    if size < LEAST_LOG_BYTES:
        raise ValueError(f"expected at least 64K, found {size} bytes")
    return size


def _ranks_or_streams(value: Any, validate_ranks: Callable[[Any], Any]) -> Any:
    """Return the value as global ranks if it is a list, else as streams of local ranks."""
    return validate_ranks(value) if isinstance(value, (list, tuple)) else LocalStreams.from_value(value)


Line = Annotated[StrictStr, AfterValidator(_filled), WithJsonSchema(_SCALAR)]
FilePath = Annotated[StrictStr, AfterValidator(_path), WithJsonSchema(_SCALAR)]
Program = Annotated[StrictStr, AfterValidator(_no_option), WithJsonSchema(_SCALAR)]
ModuleName = Annotated[StrictStr, AfterValidator(_module), WithJsonSchema({"type": "string"})]
NodePath = Annotated[StrictStr, AfterValidator(_with_references), AfterValidator(_path), WithJsonSchema(_SCALAR)]
Mount = Annotated[StrictStr, AfterValidator(_mount), WithJsonSchema(_SCALAR)]
Argument = Annotated[StrictStr, AfterValidator(_argument), WithJsonSchema(_SCALAR_OR_NULL)]
ShellLine = Annotated[StrictStr, AfterValidator(_shell_line), WithJsonSchema(_SCALAR)]
Name = Annotated[StrictStr, AfterValidator(check_name), WithJsonSchema({**_SCALAR, "pattern": f"^{_NAME.pattern}$"})]
RunName = Annotated[StrictStr, AfterValidator(_run_name), WithJsonSchema({**_SCALAR, "pattern": RUN_NAME_PATTERN})]
VariableName = Annotated[StrictStr, AfterValidator(_variable)]
VariableValue = Annotated[StrictStr, AfterValidator(_with_references), WithJsonSchema(_SCALAR)]
OptionName = Annotated[StrictStr, AfterValidator(normalize_option)]
OptionValue = Annotated[StrictStr, AfterValidator(_option_value), WithJsonSchema(_SCALAR)]
SignalName = Annotated[StrictStr, AfterValidator(_signal), WithJsonSchema({"type": "string", "examples": ["USR2"]})]

Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Factor = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]

Percent = Annotated[
    str,
    PlainValidator(_text_first(_percent, "a share such as 40%")),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+ ?%$", "examples": ["40%"]}),
]

Duration = Annotated[timedelta, PlainValidator(_duration), WithJsonSchema(_DURATION)]
PositiveDuration = Annotated[
    timedelta, PlainValidator(_duration), AfterValidator(_at_least(timedelta(seconds=1))), WithJsonSchema(_DURATION)
]
HealthCheck = Annotated[
    bool | timedelta, PlainValidator(_health_check), WithJsonSchema({"anyOf": [{"type": "boolean"}, _DURATION]})
]
Lease = Annotated[timedelta, PlainValidator(_duration), AfterValidator(_lease), WithJsonSchema(_DURATION)]
Size = Annotated[int, PlainValidator(_text_first(parse_size, "a size such as 500M")), WithJsonSchema(_SIZE)]
Memory = Annotated[
    str,
    PlainValidator(_text_first(_memory, "an amount of memory such as 64G")),
    WithJsonSchema({"anyOf": [_SIZE, {"const": 0}]}),
]
Replicas = Annotated[int, PlainValidator(_replicas), WithJsonSchema({"enum": [0, 1]})]
Rate = Annotated[str, PlainValidator(_text_first(_rate, "a size such as 500M")), WithJsonSchema(_SIZE)]
LogSize = Annotated[
    int,
    PlainValidator(_text_first(parse_size, "a size such as 500M")),
    AfterValidator(_log_size),
    WithJsonSchema(_SIZE),
]
LogPrefix = Annotated[StrictStr, AfterValidator(_prefix), WithJsonSchema(_SCALAR)]
Redirects = Annotated[LocalStreams, PlainValidator(LocalStreams.from_value), WithJsonSchema({"anyOf": _STREAMS})]
Tee = Annotated[
    tuple[int, ...] | LocalStreams,
    GetPydanticSchema(lambda _, handler: handler.generate_schema(tuple[Count, ...])),
    WrapValidator(_ranks_or_streams),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 0}}, *_STREAMS]}),
]
Workers = Annotated[
    int | tuple[int, ...] | str,
    PlainValidator(_workers),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "auto"},
                {"type": "integer", "minimum": 1},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}},
            ]
        }
    ),
]


def number_as_map(*keys: str) -> BeforeValidator:
    """Read one number of at least 1 as a map that gives it to each of these keys."""

    def widen(value: object) -> object:
        if isinstance(value, (bool, str, float)) or value is None or isinstance(value, list):
            raise ValueError(f"expected a number or a map of {' and '.join(keys)}, found {describe(value)}")
        if isinstance(value, int):
            if value < 1:
                raise ValueError(f"expected at least 1, found {value}")
            return dict.fromkeys(keys, value)
        return value

    return BeforeValidator(widen)
