"""Linear equations on grids: row kernels of stencils and whole steps in few passes over memory."""
