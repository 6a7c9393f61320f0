"""Execute: plan, launch, train, measure."""
