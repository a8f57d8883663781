"""What looks at pictures, for rewards, credit and studies alike."""
