from hpc_elastic.worker.heartbeat_writer import heartbeat as heartbeat
