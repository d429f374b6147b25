"""`hpc-elastic completion`: the completion of a shell, made of the parsers of all verbs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpc_elastic.cli.arguments import VerbParser

_SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
  hpc-elastic completion bash > ~/.hpc-elastic.bash
  hpc-elastic completion zsh > ~/.zfunc/_hpc-elastic
  hpc-elastic completion fish > ~/.config/fish/completions/hpc-elastic.fish

They are files so that a new shell need not start this program. bash reads its
one by `source ~/.hpc-elastic.bash` in ~/.bashrc; zsh by `fpath+=~/.zfunc` in
~/.zshrc, before compinit. Make them anew after an upgrade.
"""


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "completion",
        usage="bash | zsh | fish",
        description="Print the completion of a shell: verbs, options, runs, sites and files.",
        examples=_EXAMPLES,
    )
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help="bash, zsh or fish")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    shell: str = make_parser().parse_args(argv).shell
    print(completion(shell), end="")
    return 0


def completion(shell: str) -> str:
    """Return the completion of bash, zsh or fish."""
    from hpc_elastic.cli.shells.bash import bash_completion
    from hpc_elastic.cli.shells.fish import fish_completion
    from hpc_elastic.cli.shells.grammar import all_verbs
    from hpc_elastic.cli.shells.zsh import zsh_completion
    from hpc_elastic.shipped import shipped_directory

    write = {"bash": bash_completion, "zsh": zsh_completion, "fish": fish_completion}[shell]
    files = sorted(os.listdir(shipped_directory("site-configs")))
    return write(all_verbs(), [file.removesuffix(".yaml") for file in files if file.endswith(".yaml")])
