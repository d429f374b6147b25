-- Lmod: hpc_elastic/VERSION.lua, for an environment that was made with
--   python3 -m venv ROOT && ROOT/bin/pip install hpc_elastic
--   mkdir ROOT/command && ln -s ../bin/hpc-elastic ROOT/command/
-- `make release` fills in the version: dist/recipes/module/VERSION.lua. Set the root to yours.
local version = "@VERSION@"
local root = pathJoin("/opt/apps/hpc_elastic", version)

help([[
hpc_elastic runs a PyTorch training job on a Slurm cluster and starts it again when a worker fails or a node is lost.

    hpc-elastic submit job.yaml --follow
    man hpc-elastic

The environment that trains may be another one: name it in `setup` and `python` of the job file.
]])
whatis("Name: hpc_elastic")
whatis("Version: " .. version)
whatis("Description: Run PyTorch on Slurm so that it survives what clusters do")
whatis("URL: https://github.com/hpc-elastic/hpc_elastic")

conflict("hpc_elastic")

-- The command alone: the Python and pip of the environment would hide those of the user's own.
prepend_path("PATH", pathJoin(root, "command"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
prepend_path("XDG_DATA_DIRS", pathJoin(root, "share"))
-- Site files of this cluster, before those that come with the package.
-- prepend_path("HPC_ELASTIC_SITE_PATH", "/opt/apps/hpc_elastic/sites")
