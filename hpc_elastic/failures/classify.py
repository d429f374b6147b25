"""Decides what a worker's failure was: its class, a message, the frame of the user's code, and what else is known.

Theory of operation. An exception has a chain (`traceback_text`): each member is held against the rules for exceptions,
and the member that began it is the failure, because what `finally` raises on the way out is a consequence. A worker
without an exception of its own is held against the rules for ends of processes. Both are tables in an order; the first
rule that holds is the answer, and each has a last rule that always holds. Types of exceptions count before texts, and
where an exception was raised before what it says: a user's ValueError("Connection closed by peer") is a ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.describe import first_line
from hpc_elastic.failures.ends import RULES_FOR_ENDS, WorkerEnd, find_shell_code, signal_of_program, text_of_exit
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.failures.exception_rules import (
    RULES_FOR_EXCEPTIONS,
    Occurrence,
    describe,
    find_logged_loss,
    is_consequence,
    lost_process,
)
from hpc_elastic.failures.output_end import (
    NOISE_LINES,
    WRAPPERS_LINES,
    clean_output,
    find_chain,
    find_child,
    find_ended,
    last_line,
    says_error,
    without_colours,
)
from hpc_elastic.failures.traceback_text import (
    LAUNCHERS_ERROR,
    REMOTE_TRACEBACKS,
    Frame,
    Raised,
    innermost_of_user,
    name_frame,
    parse_fault,
    parse_traceback,
    parse_tracebacks,
)
from hpc_elastic.failures.xid import describe_xids

VICTIMS = (FailureClass.PEER_LOST, FailureClass.COLLECTIVE_TIMEOUT, FailureClass.RENDEZVOUS)
_PLAIN = (FailureClass.EXCEPTION, FailureClass.IMPORT_ERROR)  # where a text given to sys.exit says more
EXIT_OF_EXCEPTION = 1  # of a Python that an exception ended
LAST_OF_PROGRAMS = 125  # the codes above are of a shell: that it could not run a program, or of a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """What a failure was: its class, a line for people, where in the user's code, what else is known, by which rule."""

    failure_class: FailureClass
    message: str
    frame: str = ""
    detail: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """An exception of the chain, and the answer of the first rule that holds for it."""

    raised: Raised
    failure_class: FailureClass
    rule: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """The exceptions that ended a worker, () for none, and what it said after them, as far as that is another thing."""

    chain: tuple[Raised, ...] = ()
    then: str = ""


def classify(evidence: FailureEvidence) -> Classified:
    """Return the class, message, frame and details of a worker's failure; any evidence has an answer."""
    found = _classify(evidence)
    if not evidence.xids:
        return found
    is_of_gpu = found.failure_class is FailureClass.CUDA_ERROR and any(xid.is_of_gpu for xid in evidence.xids)
    return replace(
        found,
        failure_class=FailureClass.CUDA_HARDWARE if is_of_gpu else found.failure_class,
        detail="; ".join(part for part in (found.detail, describe_xids(evidence.xids)) if part),
    )


def _classify(evidence: FailureEvidence) -> Classified:
    ended = _find_ended(evidence)
    end = WorkerEnd(evidence=evidence, has_exception=bool(ended.chain))
    for rule in RULES_FOR_ENDS:
        if rule.holds(end):
            if rule.failure_class is FailureClass.EXCEPTION and ended.chain:
                found = _of_exception(evidence, ended)
                thread = ended.chain[0].thread
                is_threads = bool(thread) and found.failure_class is FailureClass.EXCEPTION
                return _of_exit_after(thread, found, evidence) if is_threads else found
            interrupt = _find_interrupt(evidence) if rule.failure_class is FailureClass.SIGNAL else ()
            frames = parse_fault(evidence.stderr_tail)
            frame = next((f for f in reversed(frames) if f.is_users), None)
            if interrupt:
                frame, frames = innermost_of_user(interrupt, interrupt[-1]), interrupt[-1].frames
            is_scripts = bool(interrupt) and interrupt[-1].was_raised_by_user
            raised = f"the script raised {describe(interrupt[-1])}" if is_scripts else ""
            return Classified(
                failure_class=rule.failure_class,
                message=rule.say(end),
                frame=_name(frame, frames, evidence),
                detail="; ".join(part for part in (rule.tell(end), raised, ended.then) if part),
                rule=rule.name,
            )
    raise AssertionError("unreachable: the last rule always holds")


def _find_interrupt(evidence: FailureEvidence) -> tuple[Raised, ...]:
    """Return the KeyboardInterrupt, with what was before it, of which Python died by SIGINT; () for none."""
    chain = parse_traceback(clean_output(evidence.stderr_tail)) if evidence.signal_name == "SIGINT" else ()
    return chain if chain and chain[-1].short_type == "KeyboardInterrupt" else ()


def find_exit_inside(stderr_tail: str) -> int | None:
    """Return the exit code that a wrapper was about to pass on, by the end of its output.

    None if no program that it ran had failed, or only as a consequence of another rank's failure.
    """
    chain = find_ended(parse_tracebacks(clean_output(stderr_tail)), is_victims=_is_victims)
    if chain:
        return None if _is_victims(chain) else EXIT_OF_EXCEPTION
    code = find_shell_code(stderr_tail)
    if code is None:
        return None
    found = classify(FailureEvidence(exit_code=code, stderr_tail=stderr_tail))
    return None if found.failure_class in VICTIMS else code


def _find_ended(evidence: FailureEvidence) -> _Ended:
    """Return the exceptions that ended the worker: its program's, its own of its error file, or its output's."""
    if evidence.written_by and evidence.failure_class != FailureClass.EXIT_CODE.value:
        own = _own_chain(evidence)
        if _is_victims(own[:1]):
            return _Ended(chain=own)
        then = describe(own[-1]).partition("\n")[0]
        if child := find_child(evidence.stderr_tail, own, is_victims=_is_victims):
            return _Ended(chain=child, then=f"then {then}")
        return _Ended(then=f"then {then}") if signal_of_program(evidence) else _Ended(chain=own)
    if evidence.signal_name is not None:
        return _Ended()
    if evidence.written_by and (chain := parse_traceback(evidence.traceback)):
        return _find_before_exit(evidence, chain)
    return _Ended(chain=_chain_in_output(evidence, WRAPPERS_LINES) or _logged_loss(evidence))


def _find_before_exit(evidence: FailureEvidence, chain: tuple[Raised, ...]) -> _Ended:
    """Return the exceptions because of which a script exited by itself, as far as they say more than its exit.

    Args:
        evidence: what is known.
        chain: the SystemExit, behind the exceptions in whose handling it was raised.
    """
    handled = chain[:-1]
    if _is_victims(chain[:1]):
        return _Ended(chain=handled or chain)  # sys.exit in the handler of a peer's loss
    text, printed = text_of_exit(evidence), _chain_in_output(evidence, NOISE_LINES)
    if printed and printed[-1].ended_process:
        return _Ended(chain=printed, then=f"then {text.strip()}" if text else "")
    if not printed and (logged := _logged_loss(evidence)):
        return _Ended(chain=logged)
    if text:
        if printed and not printed[0].thread and _is_victims(printed):
            return _Ended(chain=printed)
        is_telling = handled and _choose(_hold(evidence, handled)).failure_class not in _PLAIN
        return _Ended(chain=handled, then=f"then {text.strip()}") if is_telling else _Ended()
    # A library that exits in a handler of its own, such as argparse, has said why; a user's exception tells more.
    if any(frame.is_users for raised in handled for frame in raised.frames):
        return _Ended(chain=handled)
    is_told = says_error(last_line(evidence.stderr_tail)) and not _ends_with(printed, evidence)
    return _Ended() if is_told else _Ended(chain=printed)


def _chain_in_output(evidence: FailureEvidence, noise: int) -> tuple[Raised, ...]:
    """Return the exceptions that ended a program, as its output shows them; a Python program exits with 1 of them."""
    chain = find_chain(evidence.stderr_tail, noise=noise, is_victims=_is_victims)
    code = evidence.exit_code or 0
    is_of_wrapper = bool(chain) and chain[-1].ended_process and 1 < code <= LAST_OF_PROGRAMS
    if code == 1 or is_of_wrapper:
        return chain
    # A handler that prints the loss of a peer and gives up at once, with a code of its own.
    has_given_up = code > 0 and bool(chain) and _ends_with(chain, evidence) and _is_victims(chain)
    return chain if has_given_up else ()


def _logged_loss(evidence: FailureEvidence) -> tuple[Raised, ...]:
    """Return gloo's exception of which a program's last line tells before it gives up; () for none."""
    tail = evidence.stderr_tail
    logged = find_logged_loss(last_line(tail)) if evidence.exit_code else None
    if logged is None or not _is_victims((logged,)):
        return ()
    # The last line of a traceback is told by its chain, which another exception may have begun.
    return () if _ends_with(parse_traceback(clean_output(tail)), evidence) else (logged,)


def _ends_with(chain: tuple[Raised, ...], evidence: FailureEvidence) -> bool:
    """Return whether the last line of the output is of this chain's last exception."""
    return bool(chain) and last_line(evidence.stderr_tail).startswith(chain[-1].type_name)


def _own_chain(evidence: FailureEvidence) -> tuple[Raised, ...]:
    """Return the exceptions in a worker's error file."""
    chains = parse_tracebacks(evidence.traceback)
    chain = chains[-1] if chains else ()
    if chain and (not evidence.message or _is_same(chain[-1], evidence.message)):
        return chain
    prefixes = (each[:length] for each in chains for length in range(1, len(each) + 1))
    own = next((each for each in prefixes if _is_same(each[-1], evidence.message)), None)
    if own is not None:  # the tracebacks behind it are quoted in its text
        return (*own[:-1], replace(own[-1], text=evidence.message.partition(": ")[2]))
    name, _, text = evidence.message.partition(": ")
    written = Raised(
        type_name=evidence.exception_type.strip(". ") or name.strip(". ") or "an exception without a name", text=text
    )
    return (*chain[:-1], written) if chain else (written,)


def _is_same(raised: Raised, message: str) -> bool:
    """Return whether a message is that of an exception, by its type and the first line of its text."""
    first = raised.text.partition("\n")[0].strip()
    return message.startswith(raised.short_type) and first in message.partition("\n")[0]


def _is_victims(chain: tuple[Raised, ...]) -> bool:
    return _hold(FailureEvidence(), chain)[0].failure_class in VICTIMS


def _of_exception(evidence: FailureEvidence, ended: _Ended) -> Classified:
    chain = ended.chain
    held = _hold(evidence, chain)
    whole = _choose(held)
    place = next(number for number, each in enumerate(held) if each is whole)  # not index(): others may be equal
    # The group's first exception says what happened, and stands before it as its cause.
    while place and held[place].raised.is_group and held[place].raised.link == "cause":
        place -= 1
    chosen = held[place]
    message = describe(chosen.raised)
    is_own = chosen is held[-1] and bool(evidence.written_by) and not ended.then  # and not of a program that it ran
    if chosen is not whole:
        message = f"{message} (in {first_line(describe(whole.raised))})"
    elif is_own and chosen.failure_class is FailureClass.EXCEPTION:
        message = _as_written(evidence.message, chosen.raised)
    if chosen.failure_class is FailureClass.EXCEPTION and chosen is whole:
        message = _with_origin(message, chosen.raised, _find_origin([each.raised for each in held[: place + 1]]))
    frame = _name(innermost_of_user(chain, chosen.raised), chosen.raised.frames, evidence)
    if chosen is whole and frame and message == chosen.raised.short_type:  # the place is all that it says
        message = f"{message} (at {frame})"
    if lost := lost_process(chosen.raised):
        message = f"{message} ({lost})"
    others = [each for each in held if each is not chosen and each.raised.text != chosen.raised.text]
    is_last = held[-1] in (chosen, whole)
    after = f"then {describe(others[-1].raised)}" if others and not is_last else ""
    return Classified(
        failure_class=chosen.failure_class,
        message=message,
        frame=frame,
        detail="; ".join(part for part in (chosen.detail, after, ended.then) if part),
        rule=chosen.rule,
    )


def _of_exit_after(thread: str, found: Classified, evidence: FailureEvidence) -> Classified:
    """Return the exit of a worker whose output ends with the exception of a thread, which does not end a process.

    An exception of a class that says more than that there was one, such as a lost peer, stays what it is.
    """
    last = RULES_FOR_ENDS[-1]
    where = f", at {found.frame}" if found.frame else ""
    first, newline, more = found.message.partition("\n")
    message = text_of_exit(evidence) or f"{first} (in {thread}{where}){newline}{more}"
    return Classified(failure_class=last.failure_class, message=message, rule=last.name)


def _as_written(message: str, raised: Raised) -> str:
    """Return an error file's message, which may say more than the traceback, from its first word on."""
    prefix = f"{raised.short_type}:"
    text = without_colours(message.removeprefix(prefix)).strip()
    is_plain = (
        message.startswith(prefix)
        and bool(text)
        and not text.startswith("Caught ")
        and raised.short_type != LAUNCHERS_ERROR
    )
    return f"{prefix} {text}" if is_plain else describe(raised)


def _hold(evidence: FailureEvidence, chain: tuple[Raised, ...]) -> list[_Held]:
    found = []
    for raised in chain:
        occurrence = Occurrence(raised=raised, evidence=evidence)
        rule = next(rule for rule in RULES_FOR_EXCEPTIONS if rule.holds(occurrence))
        detail = rule.tell(occurrence)
        found.append(_Held(raised=raised, failure_class=rule.failure_class, rule=rule.name, detail=detail))
    return found


def _choose(held: list[_Held]) -> _Held:
    """Return the exception of a chain that is the failure.

    A loss of a peer that comes first is it, whatever the script makes of it. One that comes later, and what torch's
    own code complains of on the way out, follow from what came before. Of the rest it is the last, as Python shows
    it, unless an earlier one is of a more telling class.
    """
    if held[0].failure_class in VICTIMS:
        return held[0]
    own = [
        held[0],
        *(each for each in held[1:] if each.failure_class not in VICTIMS and not is_consequence(each.raised)),
    ]
    last = own[-1]
    if last.failure_class is not FailureClass.EXCEPTION:
        return last
    return next((each for each in own if _is_more_telling(each, last)), last)


def _find_origin(chain: list[Raised]) -> Raised:
    """Return the exception for which the last of a chain was raised, the last itself if it was for none.

    That is what `raise ... from error` names, and the one in whose handler the script raised another one.
    """
    for earlier, later in zip(reversed(chain[:-1]), reversed(chain), strict=False):
        is_for_it = later.link == "cause" or (later.was_raised_by_user and _is_in_handler(earlier, later))
        if earlier.short_type in REMOTE_TRACEBACKS or not is_for_it:
            return later
    return chain[0]


def _with_origin(message: str, raised: Raised, origin: Raised) -> str:
    """Return a message with the exception for which it was raised behind its first line, if that says more."""
    first, newline, more = message.partition("\n")
    is_said = origin is raised or (origin.text.strip() or origin.short_type) in raised.text
    if is_said or first.rstrip().endswith(":"):  # what the colon announces stands in the next line
        return message
    return f"{first} (from {first_line(describe(origin))}){newline}{more}"


def _is_in_handler(earlier: Raised, later: Raised) -> bool:
    """Return whether the function that raised an exception, or handled it, raised the later one itself."""
    inner = later.innermost
    if inner is None:
        return False
    place = (inner.file, inner.function)
    if place not in {(frame.file, frame.function) for frame in earlier.frames}:
        return False
    # Else the handler has called its own function again.
    return [(frame.file, frame.function) for frame in later.frames].count(place) == 1


def _is_more_telling(earlier: _Held, last: _Held) -> bool:
    if earlier.failure_class is FailureClass.EXCEPTION:
        return False
    if last.raised.link == "cause":
        return True
    # `except ImportError:` with other code below it is usual, and so is going on after a full cache or with another
    # port: it counts if the handler itself raised what came then, or if a library did, which tidied up.
    inner, other = last.raised.innermost, earlier.raised.innermost
    if inner is None or other is None:
        return earlier.failure_class is not FailureClass.IMPORT_ERROR
    if _is_in_handler(earlier.raised, last.raised):
        return True
    return earlier.failure_class is not FailureClass.IMPORT_ERROR and not inner.is_users


def _name(frame: Frame | None, frames: tuple[Frame, ...], evidence: FailureEvidence) -> str:
    outermost = next((each for each in frames if each.is_users), None)
    return name_frame(frame, outermost, evidence.directory)
