"""Operations: what each allocates, keeps for backward, and makes in backward."""
