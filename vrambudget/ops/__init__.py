"""Operations: what each allocates, saves for backward, and allocates in backward."""
