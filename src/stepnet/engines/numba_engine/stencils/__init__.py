"""Linear equations on grids: row kernels of stencils, whole steps in one pass over memory, tridiagonal solves."""
