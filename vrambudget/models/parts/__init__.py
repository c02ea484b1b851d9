"""What several architectures are made of: attention, masks, rotary positions, norms, losses."""
