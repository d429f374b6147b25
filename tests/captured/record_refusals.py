"""Records how sbatch of each Slurm refuses a job, for the tests of the tips.

    python -m tests.captured.record_refusals

writes `refusals.json`: by version and case, what sbatch wrote to its standard error. Refusals over accounts need
accounting: they are of this computer's own Slurm.
"""

from __future__ import annotations

import json
import os

from tests.captured.record import script
from tests.slurm_sandbox import versions
from tests.slurm_sandbox.cluster import Cluster

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "refusals.json")
_OPTIONS = {
    "constraint": "--constraint=nowhere",
    "reservation": "--reservation=none",
    "dependency-unknown": "--dependency=afterok:999999",  # taken by 22.05, whose job never starts
    "dependency-form": "--dependency=later:1",
    "nodelist": "--nodelist=node77",
    "begin": "--begin=never",
    "licenses": "--licenses=matlab:99",
    "clusters": "--clusters=elsewhere",
    "deadline": "--deadline=2001-01-01",
    "partition-down": "--partition=urgent",
}
_CHARGED = {"account": "--account=nobody", "qos": "--qos=best", "wckey": "--wckey=none", "submit-limit": "--qos=normal"}


def _refused(cluster: Cluster, options: dict[str, str]) -> dict[str, str]:
    found = {}
    for case, option in options.items():
        done = cluster.run("sbatch", "--parsable", *script("--hold", option), check=False)
        if done.returncode:
            found[case] = done.stderr
    return found


def _record(version: str) -> dict[str, str]:
    cluster = Cluster.start(1, owner=os.getpid(), version=version)
    try:
        cluster.run("scontrol", "update", "PartitionName=urgent", "State=INACTIVE")
        return _refused(cluster, _OPTIONS)
    finally:
        cluster.down()


def _record_charged() -> dict[str, str]:
    settings = {"AccountingStorageEnforce": "associations,limits,qos,wckeys", "TrackWCKey": "yes"}
    cluster = Cluster.start(1, owner=os.getpid(), accounting=True, settings=settings)
    try:
        name = f"cluster=sandbox{cluster.layout.slot}"
        cluster.run("sacctmgr", "-i", "add", "account", "physics", name)
        cluster.run(
            "sacctmgr", "-i", "add", "user", "root", "account=physics", "defaultaccount=physics", name, "wckey=one"
        )
        found = _refused(cluster, {case: _CHARGED[case] for case in ("account", "qos", "wckey")})
        cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=0")
        return found | _refused(cluster, {"submit-limit": _CHARGED["submit-limit"]})
    finally:
        cluster.down()


def main() -> None:
    """Records all cases of all versions that can be had."""
    own = versions.own() or ""
    found = {version: _record(version) for version in versions.SUPPORTED}
    found[own] |= _record_charged()
    with open(PATH, "w") as file:
        file.write(json.dumps(found, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
