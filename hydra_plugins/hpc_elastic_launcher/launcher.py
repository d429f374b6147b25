"""What Hydra finds when it looks for plug-ins: the launcher, where hydra-submitit-launcher is installed too."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("hydra_plugins.hydra_submitit_launcher") is not None:  # else Hydra would warn of us in every program
    from hydra_plugins.hpc_elastic_launcher._launcher import HpcElasticLauncher as HpcElasticLauncher
    from hydra_plugins.hpc_elastic_launcher._settings import register

    register()
