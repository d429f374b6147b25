"""submitit's interface: its executor, job and job environment, which run functions as our runs."""

from hpc_elastic.integrations.submitit.environment import HpcElasticJobEnvironment
from hpc_elastic.integrations.submitit.executor import HpcElasticExecutor
from hpc_elastic.integrations.submitit.job import HpcElasticJob

__all__ = ["HpcElasticExecutor", "HpcElasticJob", "HpcElasticJobEnvironment"]
