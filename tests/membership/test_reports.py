"""What a member says of its own part."""

from __future__ import annotations

from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.reports import describe_assign
from hpc_elastic.rundir.records import Endpoint


def test_the_line_about_a_rendezvous_has_every_rank_and_the_store() -> None:
    assign = Assign(
        attempt=3,
        group_rank=1,
        group_world_size=2,
        first_rank=4,
        workers=4,
        world_size=8,
        role="trainer",
        first_role_rank=2,
        role_world_size=6,
        master=Endpoint(address="10.0.0.1", port=25000),
        serves_store=False,
        is_failure_ignored=False,
        world_digest="d",
        head="node1",
    )
    assert describe_assign(assign) == (
        "[trainer] rendezvous complete for attempt 3: restart_count=2 master_addr=10.0.0.1 master_port=25000"
        " group_rank=1 group_world_size=2 local_ranks=0-3 role_ranks=2-5 global_ranks=4-7"
        " role_world_size=6 global_world_size=8"
    )
