"""The proof: exploration, simulation and mutants of the shipped protocol. Beside the product, not in the wheel."""
