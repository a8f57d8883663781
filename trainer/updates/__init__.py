"""What updates of the policy are made of."""
