"""What of a parser the shells are told."""

from __future__ import annotations

import argparse

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.cli.shells.grammar import Takes, all_verbs, options_of, spelled


def make_parser() -> VerbParser:
    return VerbParser("try", usage="[options]", description="Try.")


def test_help_is_expanded_as_argparse_does() -> None:
    parser = make_parser()
    parser.add_argument("--share", metavar="N", type=int, default=40, help="so many %%; default %(default)s")
    (option,) = [option for option in options_of(parser, parser._actions) if option.names == ("--share",)]
    assert option.help == "so many %; default 40"


def test_an_option_that_help_hides_is_not_offered() -> None:
    parser = make_parser()
    parser.add_argument("--old", help=argparse.SUPPRESS)
    assert [option.names for option in options_of(parser, parser._actions)] == [("-h", "--help")]


def test_what_an_option_takes_is_told_by_its_metavar() -> None:
    taken = {(verb.name, option.names[-1]): option.takes for verb in all_verbs() for option in verb.options}
    assert taken["submit", "--run-dir"] is Takes.FOLDER
    assert taken["submit", "--site"] is Takes.SITE
    assert taken["schema", "--site"] is Takes.SITE  # it takes no value, so nobody asks
    assert taken["logs", "--grep"] is Takes.TEXT


def test_the_second_spelling_of_torchrun_is_left_out() -> None:
    (run,) = [verb for verb in all_verbs() if verb.name == "run"]
    (option,) = [option for option in run.options if "--nproc_per_node" in option.names]
    assert spelled(option) == ("--nproc-per-node",)
