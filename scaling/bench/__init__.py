"""`scaling bench`: a matrix of plans run for real here, predicted beside measured, and two such results compared."""
