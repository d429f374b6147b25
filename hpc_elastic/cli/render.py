"""`hpc-elastic render`: the script that would be submitted."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.cli.arguments import VerbParser, add_job_file, add_planning


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "render",
        usage="[options] job.yaml",
        description="Print the script that would be submitted. Nothing is made.",
        examples="  hpc-elastic render job.yaml --site generic-slurm > job.sh\n",
    )
    add_job_file(parser)
    add_planning(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    from hpc_elastic.api.prepare import prepare_run, read_job_file

    prepared = prepare_run(
        read_job_file(arguments.job_file),
        overrides=arguments.overrides,
        site_name=arguments.site,
        run_dir=arguments.run_dir,
    )
    print(prepared.script, end="")
    return 0
