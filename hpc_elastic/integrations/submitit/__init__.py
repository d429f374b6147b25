"""Implements submitit's interface: executor, job and job environment, which run functions as runs of this package."""

from hpc_elastic.integrations.submitit.environment import HpcElasticJobEnvironment
from hpc_elastic.integrations.submitit.executor import HpcElasticExecutor
from hpc_elastic.integrations.submitit.job import HpcElasticJob

__all__ = ["HpcElasticExecutor", "HpcElasticJob", "HpcElasticJobEnvironment"]
