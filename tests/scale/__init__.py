"""What a change of a group costs, beside the original: counted in a simulation, and measured on real processes."""
