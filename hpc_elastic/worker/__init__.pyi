from hpc_elastic.worker.heartbeat_writer import heartbeat as heartbeat
from hpc_elastic.worker.notices import Notice as Notice
from hpc_elastic.worker.notices import notice_received as notice_received
from hpc_elastic.worker.notices import on_notice as on_notice
from hpc_elastic.worker.saves import saving as saving
