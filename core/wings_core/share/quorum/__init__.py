"""What a majority of the replicas agrees on, as procedures that tell what they wait for."""
