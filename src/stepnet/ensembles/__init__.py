"""Many members of one problem: `solve_ensemble`, its gradients, sweeps over grids and reductions of their results."""
