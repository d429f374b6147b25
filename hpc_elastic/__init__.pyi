from hpc_elastic.api.job import Job as Job
from hpc_elastic.api.result import ReturnValuesError as ReturnValuesError
from hpc_elastic.api.result import RunFailed as RunFailed
from hpc_elastic.api.result import RunResult as RunResult
from hpc_elastic.api.run import Run as Run
from hpc_elastic.api.submit import submit as submit
from hpc_elastic.errors import HpcElasticError as HpcElasticError
from hpc_elastic.errors import RendezvousTimeoutError as RendezvousTimeoutError

__version__: str
